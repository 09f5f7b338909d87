//! The syntax tree of an expression, after macro expansion.

/// A node. Ids are unique within a tree, except for subtrees that a macro uses twice.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    pub id: u32,
    /// The offset in code points from the start of the text.
    pub at: u32,
    /// The number of nodes on the longest path down, this one included.
    pub height: u16,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Literal(Literal),
    Ident(Box<str>),
    Select {
        operand: Box<Expr>,
        field: Box<str>,
        /// `has(operand.field)`.
        test: bool,
    },
    Call {
        function: Box<str>,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List(Vec<Element>),
    Map(Vec<Entry>),
    Struct {
        name: Box<str>,
        fields: Vec<FieldInit>,
    },
    Fold(Box<Fold>),
    /// Replaces a node for which an error was reported.
    Broken,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Box<str>),
    Bytes(Box<[u8]>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Element {
    pub value: Expr,
    pub optional: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FieldInit {
    pub id: u32,
    pub at: u32,
    pub name: Box<str>,
    pub value: Expr,
    pub optional: bool,
}

/// A comprehension, to which macros expand: iterates over a range and updates an accumulator.
#[derive(Debug, Clone, PartialEq)]
pub struct Fold {
    pub range: Expr,
    pub variable: Box<str>,
    /// The second variable (the value beside a key or index), or empty.
    pub variable2: Box<str>,
    pub accumulator: Box<str>,
    pub init: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}

impl Expr {
    /// Returns the direct children, in the order of their evaluation.
    pub fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) | Kind::Broken => Vec::new(),
            Kind::Select { operand, .. } => vec![operand],
            Kind::Call { target, args, .. } => target.iter().map(|t| &**t).chain(args).collect(),
            Kind::List(elements) => elements.iter().map(|e| &e.value).collect(),
            Kind::Map(entries) => entries.iter().flat_map(|e| [&e.key, &e.value]).collect(),
            Kind::Struct { fields, .. } => fields.iter().map(|f| &f.value).collect(),
            Kind::Fold(f) => vec![&f.range, &f.init, &f.condition, &f.step, &f.result],
        }
    }
}

/// The accumulator of the macros; expressions cannot name it.
pub const ACCUMULATOR: &str = "@result";

/// The operators' names as functions.
pub mod operator {
    pub const CONDITIONAL: &str = "_?_:_";
    pub const AND: &str = "_&&_";
    pub const OR: &str = "_||_";
    pub const NOT: &str = "!_";
    pub const EQUALS: &str = "_==_";
    pub const NOT_EQUALS: &str = "_!=_";
    pub const LESS: &str = "_<_";
    pub const LESS_EQUALS: &str = "_<=_";
    pub const GREATER: &str = "_>_";
    pub const GREATER_EQUALS: &str = "_>=_";
    pub const ADD: &str = "_+_";
    pub const SUBTRACT: &str = "_-_";
    pub const MULTIPLY: &str = "_*_";
    pub const DIVIDE: &str = "_/_";
    pub const MODULO: &str = "_%_";
    pub const NEGATE: &str = "-_";
    pub const INDEX: &str = "_[_]";
    pub const OPT_INDEX: &str = "_[?_]";
    pub const OPT_SELECT: &str = "_?._";
    pub const IN: &str = "@in";
    pub const NOT_STRICTLY_FALSE: &str = "@not_strictly_false";
}
