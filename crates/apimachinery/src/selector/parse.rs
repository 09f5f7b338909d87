//! The parser of label selectors.

use std::collections::BTreeSet;

use super::{Operator, Requirement, SelectorError, joined};
use crate::field::{self, Path};
use crate::names;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    End,
    OpenParenthesis,
    CloseParenthesis,
    Comma,
    Not,
    Compare(&'a str),
    /// Includes `in` and `notin`, which are operators only after a key.
    Word(&'a str),
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::End => "",
            Self::OpenParenthesis => "(",
            Self::CloseParenthesis => ")",
            Self::Comma => ",",
            Self::Not => "!",
            Self::Compare(text) | Self::Word(text) => text,
        }
    }
}

fn next_token(text: &str) -> (Token<'_>, &str) {
    let text = text.trim_start_matches([' ', '\t', '\r', '\n']);
    let Some(first) = text.bytes().next() else { return (Token::End, "") };
    let length = match first {
        b'=' | b'!' if text[1..].starts_with('=') => 2,
        b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<' => 1,
        _ => text.find(['=', '!', '(', ')', ',', '>', '<', ' ', '\t', '\r', '\n']).unwrap_or(text.len()),
    };
    let (token, rest) = text.split_at(length);
    let token = match token {
        "(" => Token::OpenParenthesis,
        ")" => Token::CloseParenthesis,
        "," => Token::Comma,
        "!" => Token::Not,
        "=" | "==" | "!=" | ">" | "<" => Token::Compare(token),
        word => Token::Word(word),
    };
    (token, rest)
}

/// A cursor over the tokens; it stays at the end token.
struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        next_token(self.rest).0
    }

    fn take(&mut self) -> Token<'a> {
        let (token, rest) = next_token(self.rest);
        self.rest = rest;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let mut first = self.take();
        let negated = first == Token::Not;
        if negated {
            first = self.take();
        }
        let Token::Word(key) = first else {
            return Err(format!("found '{}', expected: identifier", first.text()));
        };
        if let Some(problem) = joined(names::label_key(key)) {
            return Err(field::Error::invalid(&Path::default(), key, problem).to_string());
        }
        let (operator, values) = if negated {
            (Operator::DoesNotExist, BTreeSet::new())
        } else if matches!(self.peek(), Token::End | Token::Comma) {
            (Operator::Exists, BTreeSet::new())
        } else {
            let operator = self.operator()?;
            let values = match operator {
                Operator::In | Operator::NotIn => self.value_list()?,
                _ => BTreeSet::from([self.value()?]),
            };
            (operator, values)
        };
        let values = values.into_iter().map(str::to_owned).collect();
        Requirement::new(key, operator, values).map_err(|e| e.to_string())
    }

    fn operator(&mut self) -> Result<Operator, String> {
        match self.take() {
            Token::Compare("=") => Ok(Operator::Equals),
            Token::Compare("==") => Ok(Operator::DoubleEquals),
            Token::Compare("!=") => Ok(Operator::NotEquals),
            Token::Compare(">") => Ok(Operator::GreaterThan),
            Token::Compare("<") => Ok(Operator::LessThan),
            Token::Word("in") => Ok(Operator::In),
            Token::Word("notin") => Ok(Operator::NotIn),
            other => Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.text())),
        }
    }

    /// Parses the value after `=`; it is empty before a comma or the end.
    fn value(&mut self) -> Result<&'a str, String> {
        match self.peek() {
            Token::End | Token::Comma => Ok(""),
            Token::Word(word) => {
                self.take();
                Ok(word)
            }
            other => Err(format!("found '{}', expected: identifier", other.text())),
        }
    }

    /// Parses `(x,y)`; a missing list item is the empty value.
    fn value_list(&mut self) -> Result<BTreeSet<&'a str>, String> {
        let open = self.take();
        if open != Token::OpenParenthesis {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        match self.peek() {
            Token::Word(_) | Token::Comma | Token::CloseParenthesis => {}
            other => return Err(format!("found '{}', expected: ',', ')' or identifier", other.text())),
        }
        let mut values = BTreeSet::new();
        loop {
            let value = match self.peek() {
                Token::Word(word) => {
                    self.take();
                    word
                }
                Token::Comma | Token::CloseParenthesis => "",
                other => return Err(format!("found '{}', expected: ',', or identifier", other.text())),
            };
            values.insert(value);
            match self.take() {
                Token::Comma => {}
                Token::CloseParenthesis => return Ok(values),
                other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
            }
        }
    }
}

/// Parses the requirements, in the order of the text.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut parser = Parser { rest: text };
    let mut requirements = Vec::new();
    match parser.peek() {
        Token::End => return Ok(requirements),
        Token::Word(_) | Token::Not => {}
        other => {
            let problem = format!("found '{}', expected: !, identifier, or 'end of string'", other.text());
            return Err(SelectorError::Syntax(problem));
        }
    }
    loop {
        requirements.push(parser.requirement().map_err(SelectorError::Requirement)?);
        match parser.take() {
            Token::End => return Ok(requirements),
            Token::Comma => {}
            other => {
                let problem = format!("found '{}', expected: ',' or 'end of string'", other.text());
                return Err(SelectorError::Syntax(problem));
            }
        }
        let next = parser.peek();
        if !matches!(next, Token::Word(_) | Token::Not) {
            let problem = format!("found '{}', expected: identifier after ','", next.text());
            return Err(SelectorError::Syntax(problem));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Selector;

    /// The results of upstream's 1.37 parser.
    #[test]
    fn facts() {
        for (text, expected) in [
            ("", Ok("")),
            (
                "a=b,c!=d,e in (x,y),f notin (z),g,!h, i>1, j<2",
                Ok("a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1,j<2"),
            ),
            ("z,a", Ok("a,z")),
            ("a==b", Ok("a==b")),
            ("a in (b", Err("unable to parse requirement: found '', expected: ',' or ')'")),
            ("a in b", Err("unable to parse requirement: found 'b' expected: '('")),
            ("a in ()", Ok("a in ()")),
            ("a in (,)", Ok("a in ()")),
            ("a in (x,,y)", Ok("a in (,x,y)")),
            ("a in (x y)", Err("unable to parse requirement: found 'y', expected: ',' or ')'")),
            ("a=", Ok("a=")),
            ("a=,b", Ok("a=,b")),
            ("a = b", Ok("a=b")),
            ("a b", Err("unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt")),
            ("a,", Err("found '', expected: identifier after ','")),
            ("a,,b", Err("found ',', expected: identifier after ','")),
            (",a", Err("found ',', expected: !, identifier, or 'end of string'")),
            ("a=b=c", Err("found '=', expected: ',' or 'end of string'")),
            ("!", Err("unable to parse requirement: found '', expected: identifier")),
            ("!a=b", Err("found '=', expected: ',' or 'end of string'")),
            ("!!a", Err("unable to parse requirement: found '!', expected: identifier")),
            (
                "a>x",
                Err("unable to parse requirement: values[0]: Invalid value: \"x\": \
                     for 'Gt', 'Lt' operators, the value must be an integer"),
            ),
            ("in", Ok("in")),
            ("in in (in)", Ok("in in (in)")),
            ("notin=in", Ok("notin=in")),
            ("a!b", Err("unable to parse requirement: found '!', expected: in, notin, =, ==, !=, gt, lt")),
            ("=a", Err("found '=', expected: !, identifier, or 'end of string'")),
            ("a=b c", Err("found 'c', expected: ',' or 'end of string'")),
            (
                "a=-x",
                Err(
                    "unable to parse requirement: values[0][a]: Invalid value: \"-x\": a valid label must be an \
                     empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end \
                     with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
                     validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
                ),
            ),
            (
                "-a=b",
                Err("unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of \
                     alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                     character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"),
            ),
            ("a=(b)", Err("unable to parse requirement: found '(', expected: identifier")),
            ("(a)", Err("found '(', expected: !, identifier, or 'end of string'")),
            ("a>1,a<5", Ok("a>1,a<5")),
            ("a<=5", Err("unable to parse requirement: found '=', expected: identifier")),
            ("x in (a,a,b)", Ok("x in (a,b)")),
            ("a notin ()", Ok("a notin ()")),
            ("a in (=)", Err("unable to parse requirement: found '=', expected: ',', ')' or identifier")),
        ] {
            let got = Selector::parse(text).map(|s| s.to_string()).map_err(|e| e.to_string());
            assert_eq!(got.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }

    #[test]
    fn canonical_text_parses_to_the_same_and_no_text_panics() {
        let mut rng = fastrand::Rng::with_seed(3);
        let pieces =
            ["a", "b.c/d", "in", "notin", "(", ")", ",", "=", "==", "!", "!=", "<", ">", " ", "1", "é"];
        for _ in 0..50_000 {
            let text: String = (0..rng.usize(0..9)).map(|_| pieces[rng.usize(..pieces.len())]).collect();
            if let Ok(selector) = Selector::parse(&text) {
                assert_eq!(Selector::parse(&selector.to_string()), Ok(selector), "{text}");
            }
        }
    }
}
