//! The parser: precedence climbing with limits of size, nesting and height, and recovery from some errors.

use crate::ast::{Element, Entry, Expr, FieldInit, Fold, Kind, Literal, operator};
use crate::lexer::{Lexeme, Token, tokens};
use crate::macros::{self, Macros};
use crate::source::{Issues, NOWHERE};
use crate::unescape;

/// The maximum length of an expression in code points.
const LONGEST: usize = 100_000;
/// The maximum nesting of expressions, and number of consecutive operators.
const DEEPEST: usize = 250;
/// The maximum height of the tree after macro expansion.
pub const HIGHEST: u16 = 300;
/// The maximum number of nodes; macros that copy their target could make the tree grow without limit.
const MOST_NODES: u32 = 200_000;

const OPERAND: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, \
                       STRING, BYTES, IDENTIFIER}";

/// Reserved words, which cannot be names of variables.
const RESERVED: &[&str] = &[
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "null",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// Returns the tokens with which an operand may start, and the given punctuation, for error messages.
fn operand_or(punctuation: &str) -> String {
    let rest = "'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER";
    format!("{{{punctuation}{rest}}}")
}

pub struct Parser<'a> {
    text: &'a [char],
    tokens: Vec<Lexeme>,
    next: usize,
    next_id: u32,
    depth: usize,
    too_big: bool,
    /// The token at which the last error was reported; more errors at the same token are not reported.
    failed_at: Option<usize>,
    pub macros: Macros,
    pub issues: Issues,
}

/// Returns the tree of an expression, and the number of ids (the highest id plus one).
pub fn parse(source: &str, macros: Macros) -> Result<(Expr, u32), Issues> {
    let text: Vec<char> = source.chars().collect();
    let mut issues = Issues::of(source);
    if text.len() > LONGEST {
        let size = text.len();
        issues.report(
            NOWHERE,
            format!("expression code point size exceeds limit: size: {size}, limit {LONGEST}"),
        );
        return Err(issues);
    }
    let tokens = tokens(&text, &mut issues);
    let mut parser = Parser {
        text: &text,
        tokens,
        next: 0,
        next_id: 1,
        depth: 0,
        too_big: false,
        failed_at: None,
        macros,
        issues,
    };
    let tree = parser.expr();
    parser.end();
    if parser.issues.is_empty() { Ok((tree, parser.next_id)) } else { Err(parser.issues) }
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.next].token
    }

    fn peek_after(&self) -> &Token {
        &self.tokens[(self.next + 1).min(self.tokens.len() - 1)].token
    }

    fn at(&self) -> usize {
        self.tokens[self.next].at
    }

    fn advance(&mut self) {
        self.next = (self.next + 1).min(self.tokens.len() - 1);
    }

    fn is(&self, punct: &str) -> bool {
        matches!(self.peek(), Token::Punct(p) if *p == punct)
    }

    /// Consumes the token if it is this one; returns its position.
    fn take(&mut self, punct: &str) -> Option<usize> {
        let at = self.at();
        self.is(punct).then(|| {
            self.advance();
            at
        })
    }

    /// Returns the next token as errors show it.
    fn shown(&self) -> String {
        match self.peek() {
            Token::End => "<EOF>".to_owned(),
            _ => self.text[self.at()..self.tokens[self.next].end].iter().collect(),
        }
    }

    fn syntax(&mut self, what: &str) {
        if self.failed_at.replace(self.next) == Some(self.next) {
            return;
        }
        let at = self.at();
        self.issues.report(at, format!("Syntax error: {what}"));
    }

    fn expect(&mut self, punct: &str) {
        if self.take(punct).is_some() {
            return;
        }
        let shown = self.shown();
        if matches!(self.peek_after(), Token::Punct(p) if *p == punct) {
            self.syntax(&format!("extraneous input '{shown}' expecting '{punct}'"));
            self.advance();
            self.advance();
        } else if *self.peek() == Token::End && punct != ":" {
            self.syntax(&format!("missing '{punct}' at '<EOF>'"));
        } else {
            self.syntax(&format!("mismatched input '{shown}' expecting '{punct}'"));
        }
    }

    fn end(&mut self) {
        if *self.peek() != Token::End && !self.too_big {
            let kind = if *self.peek_after() == Token::End { "extraneous" } else { "mismatched" };
            let shown = self.shown();
            self.syntax(&format!("{kind} input '{shown}' expecting <EOF>"));
        }
    }

    fn give_up(&mut self) {
        if !self.too_big {
            self.too_big = true;
            self.issues.report(NOWHERE, format!("expression recursion limit exceeded: {DEEPEST}"));
        }
        self.next = self.tokens.len() - 1;
    }

    pub fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Creates a node; a broken one if the tree would become too high or too large.
    pub fn node(&mut self, at: usize, kind: Kind) -> Expr {
        let id = self.id();
        let expr = Expr { id, at: at as u32, height: 1, kind };
        let below = expr.children().iter().map(|c| c.height).max().unwrap_or(0);
        if below >= HIGHEST || self.next_id > MOST_NODES {
            self.give_up();
            return Expr { kind: Kind::Broken, ..expr };
        }
        Expr { height: below + 1, ..expr }
    }

    pub fn call(&mut self, at: usize, function: &str, args: Vec<Expr>) -> Expr {
        self.node(at, Kind::Call { function: function.into(), target: None, args })
    }

    pub fn ident(&mut self, at: usize, name: &str) -> Expr {
        self.node(at, Kind::Ident(name.into()))
    }

    pub fn literal(&mut self, at: usize, literal: Literal) -> Expr {
        self.node(at, Kind::Literal(literal))
    }

    pub fn fold(&mut self, at: usize, fold: Fold) -> Expr {
        self.node(at, Kind::Fold(Box::new(fold)))
    }

    /// Copies a tree, with new ids.
    pub fn copy(&mut self, expr: &Expr) -> Expr {
        if self.next_id > MOST_NODES {
            self.give_up();
            return Expr { kind: Kind::Broken, height: 1, id: expr.id, at: expr.at };
        }
        let mut copy = expr.clone();
        self.renumber(&mut copy);
        copy
    }

    fn renumber(&mut self, expr: &mut Expr) {
        expr.id = self.id();
        match &mut expr.kind {
            Kind::Literal(_) | Kind::Ident(_) | Kind::Broken => {}
            Kind::Select { operand, .. } => self.renumber(operand),
            Kind::Call { target, args, .. } => {
                target.iter_mut().for_each(|t| self.renumber(t));
                args.iter_mut().for_each(|a| self.renumber(a));
            }
            Kind::List(elements) => elements.iter_mut().for_each(|e| self.renumber(&mut e.value)),
            Kind::Map(entries) => entries.iter_mut().for_each(|e| {
                self.renumber(&mut e.key);
                self.renumber(&mut e.value);
            }),
            Kind::Struct { fields, .. } => fields.iter_mut().for_each(|f| {
                f.id = self.id();
                self.renumber(&mut f.value);
            }),
            Kind::Fold(f) => {
                for part in [&mut f.range, &mut f.init, &mut f.condition, &mut f.step, &mut f.result] {
                    self.renumber(part);
                }
            }
        }
    }

    pub fn broken(&mut self, at: usize, message: impl Into<String>) -> Expr {
        self.issues.report(at, message);
        self.node(at, Kind::Broken)
    }

    fn expr(&mut self) -> Expr {
        self.depth += 1;
        if self.depth > DEEPEST {
            self.give_up();
            self.depth -= 1;
            return self.node(0, Kind::Broken);
        }
        let condition = self.logic("||", operator::OR);
        let out = match self.take("?") {
            None => condition,
            Some(at) => {
                let yes = self.logic("||", operator::OR);
                self.expect(":");
                let no = self.expr();
                self.call(at, operator::CONDITIONAL, vec![condition, yes, no])
            }
        };
        self.depth -= 1;
        out
    }

    /// Parses `a || b || c` or, one level below, `a && b && c`, into a balanced tree.
    fn logic(&mut self, punct: &'static str, function: &str) -> Expr {
        let operand = |p: &mut Self| match punct {
            "||" => p.logic("&&", operator::AND),
            _ => p.binary(0),
        };
        let mut terms = vec![Some(operand(self))];
        let mut places = Vec::new();
        while let Some(at) = self.take(punct) {
            places.push(at);
            terms.push(Some(operand(self)));
        }
        self.balance(function, &mut terms, &places, 0)
    }

    fn balance(&mut self, function: &str, terms: &mut [Option<Expr>], places: &[usize], from: usize) -> Expr {
        match places.len() {
            0 => terms.get_mut(from).and_then(Option::take).unwrap_or_else(|| self.node(0, Kind::Broken)),
            n => {
                let middle = n / 2;
                let left = self.balance(function, terms, &places[..middle], from);
                let right = self.balance(function, terms, &places[middle + 1..], from + middle + 1);
                self.call(places[middle], function, vec![left, right])
            }
        }
    }

    /// Parses comparisons (level 0), sums (1) and products (2), left-associative.
    fn binary(&mut self, level: usize) -> Expr {
        const LEVELS: [&[(&str, &str)]; 3] = [
            &[
                ("<", operator::LESS),
                ("<=", operator::LESS_EQUALS),
                (">=", operator::GREATER_EQUALS),
                (">", operator::GREATER),
                ("==", operator::EQUALS),
                ("!=", operator::NOT_EQUALS),
                ("in", operator::IN),
            ],
            &[("+", operator::ADD), ("-", operator::SUBTRACT)],
            &[("*", operator::MULTIPLY), ("/", operator::DIVIDE), ("%", operator::MODULO)],
        ];
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1);
        let mut count = 0;
        while let Some((_, function)) = operators.iter().find(|(p, _)| self.is(p)) {
            count += 1;
            if count > DEEPEST {
                self.give_up();
            }
            let at = self.at();
            self.advance();
            let right = self.binary(level + 1);
            left = self.call(at, function, vec![left, right]);
        }
        left
    }

    /// Reports an error if the input has ended; `expecting` lists the expected tokens.
    fn ends_early(&mut self, expecting: &str) -> bool {
        let ends = *self.peek() == Token::End;
        if ends {
            self.syntax(&format!("mismatched input '<EOF>' expecting {expecting}"));
        }
        ends
    }

    fn unary(&mut self) -> Expr {
        for (punct, function) in [("!", operator::NOT), ("-", operator::NEGATE)] {
            if !self.is(punct) {
                continue;
            }
            let negative = matches!(self.peek_after(), Token::Int(_) | Token::Float(_));
            if punct == "-" && negative {
                return self.member();
            }
            let at = self.at();
            let mut count = 0;
            while self.take(punct).is_some() {
                count += 1;
            }
            if *self.peek() == Token::End {
                if punct == "!" {
                    self.syntax(&format!("extraneous input '<EOF>' expecting {OPERAND}"));
                } else {
                    let seen: String = self.text[at..].iter().collect();
                    self.syntax(&format!("no viable alternative at input '{seen}'"));
                    self.failed_at = None;
                }
            }
            let operand = self.member();
            return if count % 2 == 0 { operand } else { self.call(at, function, vec![operand]) };
        }
        self.member()
    }

    fn member(&mut self) -> Expr {
        let mut expr = self.primary();
        let mut count = 0;
        loop {
            count += 1;
            if count > DEEPEST {
                self.give_up();
            }
            if let Some(at) = self.take(".") {
                expr = self.selection(expr, at);
            } else if let Some(at) = self.take("[") {
                let optional = self.take("?").is_some();
                if !optional {
                    self.ends_early(&operand_or("'[', '{', '(', '.', '-', '!', '?', "));
                }
                let index = self.expr();
                self.expect("]");
                let function = if optional { operator::OPT_INDEX } else { operator::INDEX };
                expr = self.call(at, function, vec![expr, index]);
            } else {
                return expr;
            }
        }
    }

    /// Parses what follows a dot: a field or a method.
    fn selection(&mut self, operand: Expr, at: usize) -> Expr {
        let optional = self.take("?").is_some();
        let name = match self.peek() {
            Token::Ident(name) | Token::EscapedIdent(name) => name.clone(),
            Token::True | Token::False | Token::Null => {
                let shown = self.shown();
                self.syntax(&format!("mismatched input '{shown}' expecting IDENTIFIER"));
                self.advance();
                return self.node(at, Kind::Broken);
            }
            _ if optional => {
                let shown = self.shown();
                self.syntax(&format!("mismatched input '{shown}' expecting {{IDENTIFIER, ESC_IDENTIFIER}}"));
                return self.node(at, Kind::Broken);
            }
            _ => {
                let seen: String = self.text[at..self.tokens[self.next].end].iter().collect();
                self.syntax(&format!("no viable alternative at input '{seen}'"));
                return self.node(at, Kind::Broken);
            }
        };
        let plain = matches!(self.peek(), Token::Ident(_));
        let name_at = self.at();
        self.advance();
        if optional {
            let field = self.literal(name_at, Literal::String(name));
            return self.call(at, operator::OPT_SELECT, vec![operand, field]);
        }
        match plain.then(|| self.take("(")).flatten() {
            Some(open) => {
                let args = self.arguments();
                macros::expand(self, open, &name, Some(operand), args)
            }
            None => self.node(at, Kind::Select { operand: Box::new(operand), field: name, test: false }),
        }
    }

    fn arguments(&mut self) -> Vec<Expr> {
        let mut args = Vec::new();
        if self.take(")").is_some() || self.ends_early(&operand_or("'[', '{', '(', ')', '.', '-', '!', ")) {
            return args;
        }
        loop {
            args.push(self.expr());
            if self.take(",").is_none() {
                break;
            }
        }
        self.expect(")");
        args
    }

    fn primary(&mut self) -> Expr {
        let at = self.at();
        let token = self.peek().clone();
        match token {
            Token::Punct("(") => {
                self.advance();
                let inner = self.expr();
                self.expect(")");
                inner
            }
            Token::Punct("[") => self.list(at),
            Token::Punct("{") => self.map(at),
            Token::Punct(".") | Token::Ident(_) => self.name(at),
            Token::Punct("-") if matches!(self.peek_after(), Token::Int(_) | Token::Float(_)) => {
                self.advance();
                let token = self.peek().clone();
                self.constant(at, &token, "-")
            }
            Token::Punct(_) | Token::End | Token::EscapedIdent(_) => self.no_operand(),
            _ => self.constant(at, &token, ""),
        }
    }

    /// Handles a token where an operand is expected: skips it if an operand follows.
    fn no_operand(&mut self) -> Expr {
        let shown = self.shown();
        let starts = match self.peek_after() {
            Token::Punct(p) => matches!(*p, "(" | "[" | "{" | "." | "-" | "!"),
            Token::End | Token::EscapedIdent(_) => false,
            _ => true,
        };
        if starts && *self.peek() != Token::End && self.issues.list.len() < DEEPEST {
            self.syntax(&format!("extraneous input '{shown}' expecting {OPERAND}"));
            self.advance();
            return self.primary_after_error();
        }
        self.syntax(&format!("mismatched input '{shown}' expecting {OPERAND}"));
        if *self.peek() != Token::End && !self.is(")") && !self.is("]") && !self.is("}") {
            let punctuation = matches!(self.peek(), Token::Punct(_));
            self.advance();
            if punctuation {
                self.ends_early(OPERAND);
            }
        }
        let at = self.at();
        self.node(at, Kind::Broken)
    }

    fn primary_after_error(&mut self) -> Expr {
        self.depth += 1;
        let out = if self.depth > DEEPEST {
            self.give_up();
            self.node(0, Kind::Broken)
        } else {
            self.unary()
        };
        self.depth -= 1;
        out
    }

    fn constant(&mut self, at: usize, token: &Token, sign: &str) -> Expr {
        self.advance();
        let radix = |text: &str| match text.strip_prefix("0x") {
            Some(hex) => (hex.to_owned(), 16),
            None => (text.to_owned(), 10),
        };
        let literal = match token {
            Token::Int(text) => {
                let (digits, base) = radix(text);
                let value = i64::from_str_radix(&format!("{sign}{digits}"), base);
                value.map(Literal::Int).map_err(|_| "invalid int literal")
            }
            Token::Uint(text) => {
                let (digits, base) = radix(text);
                u64::from_str_radix(&digits, base).map(Literal::Uint).map_err(|_| "invalid uint literal")
            }
            Token::Float(text) => match format!("{sign}{text}").parse::<f64>() {
                Ok(value) if value.is_finite() => Ok(Literal::Double(value)),
                _ => Err("invalid double literal"),
            },
            Token::String(text) => unescape::string(text).map(|s| Literal::String(s.into())),
            Token::Bytes(text) => unescape::bytes(text).map(|b| Literal::Bytes(b.into())),
            Token::True => Ok(Literal::Bool(true)),
            Token::False => Ok(Literal::Bool(false)),
            _ => Ok(Literal::Null),
        };
        match literal {
            Ok(literal) => self.literal(at, literal),
            Err(why) => self.broken(at, why),
        }
    }

    /// Parses a variable, a call, or a message: `a`, `.a`, `a()`, `a.b.C{}`.
    fn name(&mut self, at: usize) -> Expr {
        let dot = self.take(".").is_some();
        let Token::Ident(name) = self.peek().clone() else {
            let shown = self.shown();
            let shown = if *self.peek() == Token::End { String::new() } else { shown };
            self.syntax(&format!("no viable alternative at input '.{shown}'"));
            return self.node(at, Kind::Broken);
        };
        if let Some(message) = self.message_name(dot) {
            let open = self.at();
            self.advance();
            return self.message(open, message);
        }
        let name_at = self.at();
        self.advance();
        let open = self.take("(");
        let args = open.map(|_| self.arguments());
        if RESERVED.contains(&&*name) {
            return self.broken(at, format!("reserved identifier: {name}"));
        }
        let full = if dot { format!(".{name}") } else { name.to_string() };
        match (open, args) {
            (Some(open), Some(args)) => macros::expand(self, open, &full, None, args),
            _ => self.ident(name_at, &full),
        }
    }

    /// Consumes and returns names joined by dots, if a brace follows them.
    fn message_name(&mut self, dot: bool) -> Option<String> {
        let mut at = self.next;
        let mut name = String::new();
        if dot {
            name.push('.');
        }
        loop {
            let Token::Ident(part) = &self.tokens.get(at)?.token else { return None };
            name.push_str(part);
            match &self.tokens.get(at + 1)?.token {
                Token::Punct("{") => {
                    self.next = at + 1;
                    return Some(name);
                }
                Token::Punct(".") => {
                    name.push('.');
                    at += 2;
                }
                _ => return None,
            }
        }
    }

    fn list(&mut self, at: usize) -> Expr {
        self.advance();
        self.ends_early(&operand_or("'[', ']', '{', '(', '.', ',', '-', '!', '?', "));
        let mut elements = Vec::new();
        while !self.is("]") && *self.peek() != Token::End {
            if elements.is_empty() && self.take(",").is_some() {
                break;
            }
            let optional = self.take("?").is_some();
            elements.push(Element { value: self.expr(), optional });
            if self.take(",").is_none() {
                break;
            }
        }
        self.expect("]");
        self.node(at, Kind::List(elements))
    }

    fn map(&mut self, at: usize) -> Expr {
        self.advance();
        self.ends_early(&operand_or("'[', '{', '}', '(', '.', ',', '-', '!', '?', "));
        let mut entries = Vec::new();
        while !self.is("}") && *self.peek() != Token::End {
            if entries.is_empty() && self.take(",").is_some() {
                break;
            }
            let optional = self.take("?").is_some();
            let key = self.expr();
            self.expect(":");
            let value = self.expr();
            entries.push(Entry { key, value, optional });
            if self.take(",").is_none() {
                break;
            }
        }
        self.expect("}");
        self.node(at, Kind::Map(entries))
    }

    fn message(&mut self, at: usize, name: String) -> Expr {
        let mut fields = Vec::new();
        self.ends_early("{'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}");
        while !self.is("}") && *self.peek() != Token::End {
            if fields.is_empty() && self.take(",").is_some() {
                break;
            }
            let optional = self.take("?").is_some();
            let (Token::Ident(field) | Token::EscapedIdent(field)) = self.peek().clone() else {
                let shown = self.shown();
                self.syntax(&format!(
                    "mismatched input '{shown}' expecting {{'}}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}}"
                ));
                return self.node(at, Kind::Broken);
            };
            self.advance();
            let colon = self.at();
            self.expect(":");
            let (id, value) = (self.id(), self.expr());
            fields.push(FieldInit { id, at: colon as u32, name: field, value, optional });
            if self.take(",").is_none() {
                break;
            }
        }
        self.expect("}");
        self.node(at, Kind::Struct { name: name.into(), fields })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(source: &str) -> String {
        match parse(source, Macros::default()) {
            Ok(_) => String::new(),
            Err(issues) => issues.to_string(),
        }
    }

    #[test]
    fn syntax_errors_are_worded_and_placed() {
        let operand = "expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT";
        for (source, place, message) in [
            ("1 +", "1:4", format!("mismatched input '<EOF>' {operand}")),
            ("*@a", "1:1", format!("extraneous input '*' {operand}")),
            ("a b", "1:3", "extraneous input 'b' expecting <EOF>".to_owned()),
            ("f(a", "1:4", "missing ')' at '<EOF>'".to_owned()),
            ("{a}", "1:3", "mismatched input '}' expecting ':'".to_owned()),
            ("self.true == 1", "1:6", "mismatched input 'true' expecting IDENTIFIER".to_owned()),
            ("in", "1:1", format!("mismatched input 'in' {operand}")),
            ("in", "1:3", format!("mismatched input '<EOF>' {operand}")),
            ("[", "1:2", "mismatched input '<EOF>' expecting {'[', ']', '{', '(', '.', ',', '-',".to_owned()),
            ("{", "1:2", "mismatched input '<EOF>' expecting {'[', '{', '}', '(', '.', ',',".to_owned()),
            ("f(", "1:3", "mismatched input '<EOF>' expecting {'[', '{', '(', ')', '.',".to_owned()),
            (
                "x[",
                "1:3",
                "mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', '?',".to_owned(),
            ),
            (
                "a.b{",
                "1:5",
                "mismatched input '<EOF>' expecting {'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}".to_owned(),
            ),
            ("!", "1:2", format!("extraneous input '<EOF>' {operand}")),
            ("- ", "1:3", "no viable alternative at input '- '".to_owned()),
            (".", "1:2", "no viable alternative at input '.'".to_owned()),
            ("a = b", "1:3", "token recognition error at: '= '".to_owned()),
            ("\"\\q\"", "1:1", "token recognition error at: '\"\\q'".to_owned()),
            ("\"\\q\"", "1:4", "token recognition error at: '\"'".to_owned()),
        ] {
            let found = errors(source);
            let wanted = format!("ERROR: <input>:{place}: Syntax error: {message}");
            assert!(found.contains(&wanted), "{source}: {found}");
        }
        assert_eq!(errors("`a`").matches("ERROR").count(), 1);
        assert!(errors("\"\\u12\"").contains("token recognition error at: '\"\\u12\"'"));
        for source in ["a ? b", "{a}", "f(a,", "{\"a\":", "a{b:", "x?.y"] {
            assert_eq!(errors(source).matches("ERROR").count(), 1, "{source}: not exactly one error");
        }
        assert!(errors("namespace == 'a'").starts_with("ERROR: <input>:1:1: reserved identifier: namespace"));
        assert!(errors("99999999999999999999").contains("invalid int literal"));
    }

    #[test]
    fn precedence_and_balance_hold() {
        let shape = |source: &str| {
            fn show(e: &Expr) -> String {
                match &e.kind {
                    Kind::Ident(name) => name.to_string(),
                    Kind::Call { function, args, .. } => {
                        format!("{function}({})", args.iter().map(show).collect::<Vec<_>>().join(","))
                    }
                    Kind::Literal(Literal::Int(i)) => i.to_string(),
                    other => format!("{other:?}"),
                }
            }
            show(&parse(source, Macros::default()).unwrap().0)
        };
        assert_eq!(shape("a + b * -1 - c"), "_-_(_+_(a,_*_(b,-1)),c)");
        assert_eq!(shape("a && b && c && d"), "_&&_(_&&_(a,b),_&&_(c,d))");
        assert_eq!(shape("!!a || !b ? c : d"), "_?_:_(_||_(a,!_(b)),c,d)");
        assert_eq!(shape("a == b in c"), "@in(_==_(a,b),c)");
    }

    #[test]
    fn size_and_depth_have_limits() {
        for (n, source) in [
            "(".repeat(100_000),
            "[".repeat(99_999),
            "a.".repeat(50_000),
            "1+".repeat(49_999) + "1",
            "a[".repeat(40_000),
            "!".repeat(99_999) + "a",
            "a?b:".repeat(20_000) + "c",
            "-(".repeat(40_000),
            "* ".repeat(40_000),
            "x".repeat(100_001),
        ]
        .iter()
        .enumerate()
        {
            let found = errors(source);
            assert_eq!(found.is_empty(), n == 5, "{n}: {}", &found[..found.len().min(200)]);
        }
        let nested = |n: usize| "(".repeat(n) + "1" + &")".repeat(n);
        assert!(errors(&nested(200)).is_empty());
        assert!(errors(&nested(300)).contains("expression recursion limit exceeded: 250"));
    }
}
