//! Cost estimates, from the size limits in schemas.

use std::collections::HashMap;
use std::rc::Rc;

use crate::ast::{Expr, Fold, Kind, Literal, operator};
use crate::checker::Checked;
use crate::cost::functions;
use crate::cost::{PATTERN, STRING, actual};
use crate::declarations::Declarations;
use crate::schema::DeclType;
use crate::types::Type;

/// The minimum and the maximum; both saturate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostRange {
    pub min: u64,
    pub max: u64,
}

/// Sizes are ranges, too.
pub type SizeRange = CostRange;

pub const UNKNOWN: SizeRange = SizeRange { min: 0, max: u64::MAX };

impl CostRange {
    pub fn new(min: u64, max: u64) -> Self {
        Self { min, max }
    }

    pub fn fixed(n: u64) -> Self {
        Self { min: n, max: n }
    }

    pub fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Multiplies and rounds up.
    pub fn scaled(self, factor: f64) -> Self {
        let scale = |n: u64| (n as f64 * factor).ceil() as u64;
        Self { min: scale(self.min), max: scale(self.max) }
    }

    pub fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// The estimated cost of a function call and the size of its result.
pub struct CallEstimate {
    pub cost: CostRange,
    pub size: Option<SizeRange>,
}

/// An argument of a function.
pub struct Operand<'t> {
    pub expr: &'t Expr,
    pub t: Type,
    pub size: Option<SizeRange>,
    /// The size of the elements, if the operand is a list with declared limits.
    pub element_size: Option<SizeRange>,
}

impl Operand<'_> {
    pub fn size_or_unknown(&self) -> SizeRange {
        self.size.unwrap_or(UNKNOWN)
    }
}

/// The path from a variable to a part of its value; shared, since paths grow with the tree.
#[derive(Debug, Clone)]
enum Path {
    None,
    Root(Rc<str>),
    Step(Rc<Path>, Rc<str>),
}

impl Path {
    /// Appends a step. Without a path, the step becomes a root, because upstream looks it up as one.
    fn step(self, name: &str) -> Self {
        if matches!(self, Self::None) {
            Self::Root(name.into())
        } else {
            Self::Step(Rc::new(self), name.into())
        }
    }

    fn steps(&self) -> Option<Vec<Rc<str>>> {
        let mut steps = Vec::new();
        let mut at = self;
        loop {
            match at {
                Self::None => return None,
                Self::Root(name) => {
                    steps.push(name.clone());
                    steps.reverse();
                    return Some(steps);
                }
                Self::Step(before, name) => {
                    steps.push(name.clone());
                    at = before;
                }
            }
        }
    }
}

/// The sizes of the keys and values of a container.
#[derive(Debug, Clone, Copy)]
struct EntrySize {
    list: bool,
    key: SizeRange,
    value: SizeRange,
}

#[derive(Debug, Clone)]
struct Local {
    name: Box<str>,
    path: Path,
    size: Option<SizeRange>,
    entries: Option<EntrySize>,
}

struct Estimator<'t> {
    checked: &'t Checked,
    decls: &'t Declarations,
    /// The type of keys without a size limit.
    keys: DeclType,
    paths: HashMap<u32, Path>,
    sizes: HashMap<u32, SizeRange>,
    entries: HashMap<u32, EntrySize>,
    locals: Vec<Local>,
}

pub fn estimate(tree: &Expr, checked: &Checked, decls: &Declarations) -> CostRange {
    let mut estimator = Estimator {
        checked,
        decls,
        keys: DeclType::string(0),
        paths: HashMap::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
        locals: Vec::new(),
    };
    estimator.cost(tree)
}

const ONE: CostRange = CostRange { min: 1, max: 1 };
const ZERO: CostRange = CostRange { min: 0, max: 0 };

impl Estimator<'_> {
    fn cost(&mut self, expr: &Expr) -> CostRange {
        match &expr.kind {
            Kind::Literal(_) | Kind::Broken => ZERO,
            Kind::Ident(name) => {
                let path = self.local(name).map_or_else(|| Path::Root((**name).into()), |l| l.path.clone());
                self.paths.insert(expr.id, path);
                ONE
            }
            Kind::Select { operand, field, test } => {
                let cost = self.cost(operand);
                if *test {
                    return cost;
                }
                let counts =
                    matches!(self.checked.type_of(operand), Type::Map(_) | Type::Object(_) | Type::Param(_));
                let path = self.path(operand).step(field);
                self.paths.insert(expr.id, path);
                if counts { cost.plus(ONE) } else { cost }
            }
            Kind::Call { function, target, args } => self.call(expr, function, target.as_deref(), args),
            Kind::List(elements) => {
                let mut cost = CostRange::fixed(actual::LIST);
                let mut size = None;
                for element in elements {
                    cost = cost.plus(self.cost(&element.value));
                    let own = self.size_or_unknown(&element.value);
                    size = Some(size.map_or(own, |s: SizeRange| s.union(own)));
                }
                let value = size.unwrap_or(ZERO);
                self.entries.insert(expr.id, EntrySize { list: true, key: ONE, value });
                cost
            }
            Kind::Map(entries) => {
                let mut cost = CostRange::fixed(actual::MAP);
                let (mut keys, mut values) = (None, None);
                for entry in entries {
                    cost = cost.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                    let (k, v) = (self.size_or_unknown(&entry.key), self.size_or_unknown(&entry.value));
                    keys = Some(keys.map_or(k, |s: SizeRange| s.union(k)));
                    values = Some(values.map_or(v, |s: SizeRange| s.union(v)));
                }
                let (key, value) = (keys.unwrap_or(ZERO), values.unwrap_or(ZERO));
                self.entries.insert(expr.id, EntrySize { list: false, key, value });
                cost
            }
            Kind::Struct { fields, .. } => {
                let all = fields.iter().map(|f| self.cost(&f.value)).fold(ZERO, CostRange::plus);
                all.plus(CostRange::fixed(actual::OBJECT))
            }
            Kind::Fold(fold) if is_bind(fold) => self.bind(expr, fold),
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|l| &*l.name == name)
    }

    fn path(&self, expr: &Expr) -> Path {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or(Path::None)
    }

    /// Returns the declared type at a path.
    fn declared(&self, path: &Path) -> Option<&DeclType> {
        let steps = path.steps()?;
        let (root, steps) = steps.split_first()?;
        // Upstream's estimator treats every root as `self`.
        let mut at: &DeclType = self.decls.root(root).or_else(|| self.decls.root("self"))?;
        for step in steps {
            at = match &**step {
                "@items" | "@values" => at.element()?,
                "@keys" if at.is_map() => at.key().unwrap_or(&self.keys),
                "@keys" => return None,
                field => &at.field(field)?.decl,
            };
        }
        Some(at)
    }

    fn declared_size(&self, path: &Path) -> Option<SizeRange> {
        let decl = self.declared(path)?;
        Some(SizeRange { min: 0, max: u64::try_from(decl.max_elements).unwrap_or(0) })
    }

    fn size(&mut self, expr: &Expr) -> Option<SizeRange> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        if let Some(size) = literal_size(expr) {
            return Some(size);
        }
        if let Some(size) = self.declared_size(&self.path(expr)) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if self.checked.type_of(expr).is_scalar() {
            return Some(ONE);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|l| l.size),
            _ => None,
        }
    }

    fn size_or_unknown(&mut self, expr: &Expr) -> SizeRange {
        self.size(expr).unwrap_or(UNKNOWN)
    }

    fn entry_size(&self, expr: &Expr) -> Option<EntrySize> {
        if let Some(size) = self.entries.get(&expr.id) {
            return Some(*size);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|l| l.entries),
            _ => None,
        }
    }

    fn operand<'e>(&mut self, expr: &'e Expr) -> Operand<'e> {
        let path = self.path(expr);
        let size = self.size(expr);
        // Upstream does not append a step to a missing path here.
        let element_size = match path {
            Path::None => None,
            path => self.declared_size(&path.step("@items")),
        };
        Operand { expr, t: self.checked.type_of(expr).clone(), size, element_size }
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) -> CostRange {
        if function == "dyn"
            && let [arg] = args
        {
            let cost = self.cost(arg);
            if let Some(size) = self.size(arg) {
                self.sizes.insert(expr.id, size);
            }
            if let Some(entries) = self.entry_size(arg) {
                self.entries.insert(expr.id, entries);
            }
            return cost.plus(ONE);
        }
        let arg_costs: Vec<CostRange> = args.iter().map(|a| self.cost(a)).collect();
        let operands: Vec<Operand<'_>> = args.iter().map(|a| self.operand(a)).collect();
        let overloads = self.checked.overloads(expr);
        if overloads.is_empty() {
            return ZERO;
        }
        let target_cost = target.map_or(ZERO, |t| self.cost(t));
        let target = target.map(|t| self.operand(t));
        let mut cost: Option<CostRange> = None;
        let mut size: Option<SizeRange> = None;
        for overload in overloads {
            let own = self.overload(expr, function, overload, target.as_ref(), &operands, &arg_costs);
            cost = Some(cost.map_or(own.cost, |c| c.union(own.cost)));
            if let Some(own) = own.size {
                size = Some(size.map_or(own, |s| s.union(own)));
            }
            let step = match *overload {
                "index_list" => Some("@items"),
                "index_map" => Some("@values"),
                _ => None,
            };
            if let (Some(step), Some(container)) = (step, args.first()) {
                size = self.entry_size(container).map(|e| e.value);
                let path = self.path(container).step(step);
                self.paths.insert(expr.id, path);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        if let Some(size) = size {
            self.sizes.insert(expr.id, size);
        }
        target_cost.plus(cost.unwrap_or(ZERO))
    }

    fn overload(
        &mut self,
        expr: &Expr,
        function: &str,
        overload: &str,
        target: Option<&Operand<'_>>,
        args: &[Operand<'_>],
        costs: &[CostRange],
    ) -> CallEstimate {
        let all = costs.iter().copied().fold(ZERO, CostRange::plus);
        let known = functions::extension(overload, target, args)
            .or_else(|| functions::kubernetes(function, overload, target, args));
        if let Some(known) = known {
            return CallEstimate { cost: known.cost.plus(all), size: known.size };
        }
        if let Some(own) = self.operator(expr, overload, args, costs) {
            return own;
        }
        let (cost, size) = standard(overload, target, args);
        CallEstimate { cost: cost.plus(all), size }
    }

    /// Estimates operators that do not evaluate all arguments or that return containers of containers.
    fn operator(
        &mut self,
        expr: &Expr,
        overload: &str,
        args: &[Operand<'_>],
        costs: &[CostRange],
    ) -> Option<CallEstimate> {
        match (overload, args, costs) {
            ("logical_and" | "logical_or", _, [a, b]) => {
                let cost = CostRange { min: a.min, max: a.plus(*b).max };
                Some(CallEstimate { cost, size: None })
            }
            ("conditional", [_, yes, no], [condition, a, b]) => {
                let size = yes.size_or_unknown().union(no.size_or_unknown());
                self.join_entries(expr, yes.expr, no.expr);
                Some(CallEstimate { cost: condition.plus(a.union(*b)), size: Some(size) })
            }
            ("add_string" | "add_bytes" | "add_list", [a, b], [x, y]) => {
                let size = a.size_or_unknown().plus(b.size_or_unknown());
                self.join_entries(expr, a.expr, b.expr);
                let own = if overload == "add_list" { ONE } else { size.scaled(STRING) };
                Some(CallEstimate { cost: own.plus(*x).plus(*y), size: Some(size) })
            }
            _ => None,
        }
    }

    fn join_entries(&mut self, expr: &Expr, a: &Expr, b: &Expr) {
        if let (Some(a), Some(b)) = (self.entry_size(a), self.entry_size(b)) {
            let joined = EntrySize { list: a.list, key: a.key.union(b.key), value: a.value.union(b.value) };
            self.entries.insert(expr.id, joined);
        }
    }

    // Comprehensions.

    fn bind(&mut self, expr: &Expr, fold: &Fold) -> CostRange {
        let cost = self.cost(&fold.range).plus(self.cost(&fold.init));
        let local = self.as_local(&fold.accumulator, &fold.init);
        self.locals.push(local);
        let cost = cost.plus(self.cost(&fold.result));
        let (size, entries) = (self.size(&fold.result), self.entry_size(&fold.result));
        self.locals.pop();
        if let Some(size) = size {
            self.sizes.insert(expr.id, size);
        }
        if let Some(entries) = entries {
            self.entries.insert(expr.id, entries);
        }
        cost
    }

    fn as_local(&mut self, name: &str, value: &Expr) -> Local {
        Local {
            name: name.into(),
            path: self.path(value),
            size: self.size(value),
            entries: self.entry_size(value),
        }
    }

    /// Returns the variables of a comprehension over a range.
    fn variables(&mut self, fold: &Fold) -> Vec<Local> {
        let entries = self.entry_size(&fold.range);
        let list = match entries {
            Some(e) => e.list,
            None => matches!(self.checked.type_of(&fold.range), Type::List(_)),
        };
        let path = self.path(&fold.range);
        let local = |name: &str, step: &str, size: Option<SizeRange>| Local {
            name: name.into(),
            path: path.clone().step(step),
            size,
            entries: None,
        };
        let (key, value) = (entries.map(|e| e.key), entries.map(|e| e.value));
        if !fold.variable2.is_empty() {
            let first = local(&fold.variable, if list { "@indices" } else { "@keys" }, key);
            let second = local(&fold.variable2, if list { "@items" } else { "@values" }, value);
            return vec![first, second];
        }
        vec![if list { local(&fold.variable, "@items", value) } else { local(&fold.variable, "@keys", key) }]
    }

    fn fold(&mut self, expr: &Expr, fold: &Fold) -> CostRange {
        let mut cost = self.cost(&fold.range).plus(self.cost(&fold.init));
        let depth = self.locals.len();
        let accumulator = Local { path: Path::None, ..self.as_local(&fold.accumulator, &fold.init) };
        self.locals.push(accumulator);
        let variables = self.variables(fold);
        self.locals.extend(variables);
        let turn = self.cost(&fold.condition).plus(self.cost(&fold.step));
        self.locals.truncate(depth + 1);
        cost = cost.plus(self.cost(&fold.result));
        self.locals.truncate(depth);
        let count = self.size_or_unknown(&fold.range);
        cost = cost.plus(count.times(turn));
        match &fold.init.kind {
            Kind::Literal(_) => {
                if let Some(size) = self.size(&fold.init) {
                    self.sizes.insert(expr.id, size);
                }
            }
            Kind::List(_) | Kind::Map(_) => {
                self.sizes.insert(expr.id, count);
                if let Some(entries) = self.entry_size(&fold.step) {
                    self.entries.insert(expr.id, entries);
                }
            }
            _ => {}
        }
        cost
    }
}

fn is_bind(fold: &Fold) -> bool {
    let empty = matches!(&fold.range.kind, Kind::List(e) if e.is_empty());
    empty && matches!(fold.condition.kind, Kind::Literal(Literal::Bool(false)))
}

fn literal_size(expr: &Expr) -> Option<SizeRange> {
    Some(SizeRange::fixed(match &expr.kind {
        Kind::Literal(Literal::String(s)) => s.chars().count() as u64,
        Kind::Literal(Literal::Bytes(b)) => b.len() as u64,
        Kind::Literal(_) => 1,
        Kind::List(elements) => elements.len() as u64,
        Kind::Map(entries) => entries.len() as u64,
        _ => return None,
    }))
}

/// Estimates CEL's standard functions.
fn standard(
    overload: &str,
    target: Option<&Operand<'_>>,
    args: &[Operand<'_>],
) -> (CostRange, Option<SizeRange>) {
    let size = |n: usize| args.get(n).map_or(UNKNOWN, Operand::size_or_unknown);
    let of_target = target.map_or(UNKNOWN, Operand::size_or_unknown);
    match overload {
        "string_format" => (of_target.scaled(STRING), None),
        "string_to_bytes" => {
            let s = size(0);
            (s.scaled(STRING), Some(SizeRange { min: s.min, max: s.max.wrapping_mul(4) }))
        }
        "bytes_to_string" => {
            let s = size(0);
            (s.scaled(STRING), Some(SizeRange { min: s.min / 4, max: s.max }))
        }
        "strings_quote" => {
            let s = size(0);
            let max = s.max.wrapping_mul(2).wrapping_add(2);
            (s.scaled(STRING), Some(SizeRange { min: s.min.wrapping_add(2), max }))
        }
        "starts_with_string" | "ends_with_string" => (size(0).scaled(STRING), None),
        "in_list" => (size(1), None),
        "matches" | "matches_string" => {
            let (text, pattern) = if target.is_some() { (of_target, size(0)) } else { (size(0), size(1)) };
            (text.plus(ONE).scaled(STRING).times(pattern.scaled(PATTERN)), None)
        }
        "contains_string" => (of_target.scaled(STRING).times(size(0).scaled(STRING)), None),
        "less_string"
        | "greater_string"
        | "less_equals_string"
        | "greater_equals_string"
        | "less_bytes"
        | "greater_bytes"
        | "less_equals_bytes"
        | "greater_equals_bytes"
        | "equals"
        | "not_equals" => {
            let max = size(0).max.min(size(1).max);
            (CostRange { min: u64::from(max > 0), max }.scaled(STRING), None)
        }
        operator::CONDITIONAL => (ZERO, None),
        _ => (ONE, None),
    }
}
