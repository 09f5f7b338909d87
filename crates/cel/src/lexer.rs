//! The lexer.

use crate::source::Issues;

#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    Ident(Box<str>),
    /// An identifier in backquotes, without the quotes.
    EscapedIdent(Box<str>),
    Int(Box<str>),
    Uint(Box<str>),
    Float(Box<str>),
    /// A string literal with its quotes and prefix.
    String(Box<str>),
    Bytes(Box<str>),
    True,
    False,
    Null,
    /// An operator or bracket, `in` included.
    Punct(&'static str),
    End,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Lexeme {
    pub token: Token,
    /// The offset in code points.
    pub at: usize,
    pub end: usize,
}

const PUNCTUATION: &[&str] = &[
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":",
    "+", "*", "/", "%",
];

struct Lexer<'a> {
    text: &'a [char],
    at: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn while_(&mut self, wanted: impl Fn(char) -> bool) {
        while self.peek(0).is_some_and(&wanted) {
            self.at += 1;
        }
    }

    fn blank(&mut self) {
        loop {
            self.while_(|c| matches!(c, '\t' | ' ' | '\r' | '\n' | '\u{c}'));
            if self.peek(0) != Some('/') || self.peek(1) != Some('/') {
                return;
            }
            self.while_(|c| c != '\n');
        }
    }

    fn slice(&self, from: usize) -> Box<str> {
        self.text[from..self.at].iter().collect::<String>().into()
    }

    fn number(&mut self) -> Token {
        let from = self.at;
        if self.peek(0) == Some('0')
            && self.peek(1) == Some('x')
            && self.peek(2).is_some_and(|c| c.is_ascii_hexdigit())
        {
            self.at += 2;
            self.while_(|c| c.is_ascii_hexdigit());
            return self.integer(from);
        }
        self.while_(|c| c.is_ascii_digit());
        let mut float = false;
        if self.peek(0) == Some('.') && self.peek(1).is_some_and(|c| c.is_ascii_digit()) {
            float = true;
            self.at += 1;
            self.while_(|c| c.is_ascii_digit());
        }
        if matches!(self.peek(0), Some('e' | 'E')) {
            let sign = usize::from(matches!(self.peek(1), Some('+' | '-')));
            if self.peek(1 + sign).is_some_and(|c| c.is_ascii_digit()) {
                float = true;
                self.at += 1 + sign;
                self.while_(|c| c.is_ascii_digit());
            }
        }
        if float { Token::Float(self.slice(from)) } else { self.integer(from) }
    }

    fn integer(&mut self, from: usize) -> Token {
        let text = self.slice(from);
        if matches!(self.peek(0), Some('u' | 'U')) {
            self.at += 1;
            return Token::Uint(text);
        }
        Token::Int(text)
    }

    /// Returns the end of the escape sequence whose backslash is at `at`, if it is valid.
    fn escape(&self, at: usize) -> Option<usize> {
        let digits = |from: usize, n: usize, radix: u32| {
            let all = (from..from + n).all(|i| self.text.get(i).is_some_and(|c| c.is_digit(radix)));
            all.then_some(from + n)
        };
        match self.text.get(at + 1)? {
            'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`' => Some(at + 2),
            'x' | 'X' => digits(at + 2, 2, 16),
            'u' => digits(at + 2, 4, 16),
            'U' => digits(at + 2, 8, 16),
            '0'..='3' => digits(at + 2, 2, 8),
            _ => None,
        }
    }

    /// Returns the position at which an invalid escape sequence fails.
    fn broken_escape(&self, at: usize) -> usize {
        let radix = match self.text.get(at + 1) {
            Some('x' | 'X' | 'u' | 'U') => 16,
            Some('0'..='3') => 8,
            _ => return at + 1,
        };
        let digits = self.text[at + 2..].iter().take_while(|c| c.is_digit(radix)).count();
        at + 2 + digits
    }

    /// Returns the end of the string whose quote is at `at` (after its prefix).
    fn string_end(&self, at: usize, raw: bool) -> Option<usize> {
        let quote = *self.text.get(at).filter(|c| matches!(c, '"' | '\''))?;
        let triple = self.text.get(at + 1) == Some(&quote) && self.text.get(at + 2) == Some(&quote);
        if triple && let Some(end) = self.body_end(at + 3, quote, raw, true) {
            return Some(end);
        }
        self.body_end(at + 1, quote, raw, false)
    }

    fn body_end(&self, mut at: usize, quote: char, raw: bool, triple: bool) -> Option<usize> {
        loop {
            let c = *self.text.get(at)?;
            if c == quote {
                if !triple {
                    return Some(at + 1);
                }
                if self.text.get(at + 1) == Some(&quote) && self.text.get(at + 2) == Some(&quote) {
                    return Some(at + 3);
                }
                at += 1;
            } else if c == '\\' && !raw {
                at = self.escape(at)?;
            } else if matches!(c, '\n' | '\r') && !triple {
                return None;
            } else {
                at += 1;
            }
        }
    }

    /// Reads a string or bytes literal, if one starts here.
    fn string(&mut self) -> Option<Token> {
        let from = self.at;
        let bytes = matches!(self.peek(0), Some('b' | 'B'));
        let mut open = from + usize::from(bytes);
        let raw = matches!(self.text.get(open), Some('r' | 'R'));
        open += usize::from(raw);
        let end = self.string_end(open, raw)?;
        self.at = end;
        let text: Box<str> = self.text[from + usize::from(bytes)..end].iter().collect::<String>().into();
        Some(if bytes { Token::Bytes(text) } else { Token::String(text) })
    }

    fn word(&mut self) -> Token {
        let from = self.at;
        self.while_(|c| c.is_ascii_alphanumeric() || c == '_');
        let text = self.slice(from);
        match &*text {
            "in" => Token::Punct("in"),
            "true" => Token::True,
            "false" => Token::False,
            "null" => Token::Null,
            _ => Token::Ident(text),
        }
    }

    fn escaped_ident(&mut self) -> Option<Token> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' ');
        let length = self.text[self.at + 1..].iter().take_while(|c| allowed(**c)).count();
        if length == 0 || self.peek(length + 1) != Some('`') {
            return None;
        }
        let text = self.text[self.at + 1..self.at + 1 + length].iter().collect::<String>();
        self.at += length + 2;
        Some(Token::EscapedIdent(text.into()))
    }

    fn punctuation(&mut self) -> Option<Token> {
        let fits = |p: &&&str| p.chars().enumerate().all(|(i, c)| self.peek(i) == Some(c));
        let found = *PUNCTUATION.iter().find(fits)?;
        self.at += found.len();
        Some(Token::Punct(found))
    }

    fn token(&mut self, c: char) -> Option<Token> {
        if let Some(token) = self.string() {
            return Some(token);
        }
        match c {
            '0'..='9' => Some(self.number()),
            '.' if self.peek(1).is_some_and(|c| c.is_ascii_digit()) => Some(self.number()),
            'a'..='z' | 'A'..='Z' | '_' => Some(self.word()),
            '`' => self.escaped_ident(),
            _ => self.punctuation(),
        }
    }
}

/// Returns the tokens, ending with [`Token::End`]. Characters that belong to no token are reported and skipped.
pub fn tokens(text: &[char], issues: &mut Issues) -> Vec<Lexeme> {
    let mut lexer = Lexer { text, at: 0 };
    let mut out = Vec::new();
    loop {
        lexer.blank();
        let at = lexer.at;
        let Some(c) = lexer.peek(0) else { break };
        match lexer.token(c) {
            Some(token) => out.push(Lexeme { token, at, end: lexer.at }),
            None => {
                lexer.at = unrecognized_end(text, at);
                let bad: String = text[at..lexer.at].iter().collect();
                issues.report(at, format!("Syntax error: token recognition error at: '{bad}'"));
            }
        }
    }
    out.push(Lexeme { token: Token::End, at: text.len(), end: text.len() });
    out
}

/// Returns the end of an unfinished token: `|` and `&` include the next character, a quote what follows it.
fn unrecognized_end(text: &[char], at: usize) -> usize {
    match text[at] {
        '|' | '&' | '=' => (at + 2).min(text.len()),
        '"' | '\'' | '`' => {
            let lexer = Lexer { text, at };
            let mut end = at + 1;
            while let Some(c) = text.get(end).filter(|c| !matches!(c, '\n' | '\r')) {
                if *c == '\\' && text[at] != '`' {
                    match lexer.escape(end) {
                        Some(after) => end = after,
                        // An invalid escape sequence ends the token.
                        None => return (lexer.broken_escape(end) + 1).min(text.len()),
                    }
                } else {
                    end += 1;
                }
            }
            end
        }
        _ => at + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lex(text: &str) -> (Vec<Token>, Issues) {
        let mut issues = Issues::of(text);
        let chars: Vec<char> = text.chars().collect();
        (tokens(&chars, &mut issues).into_iter().map(|l| l.token).collect(), issues)
    }

    #[test]
    fn literals_and_words_are_told_apart() {
        let (found, issues) = lex("1 1u 0x1F 1.5 .5 2e3 1.foo in inn r'\\d' b\"x\" '''a'b''' // end");
        assert!(issues.is_empty(), "{issues}");
        let wanted = vec![
            Token::Int("1".into()),
            Token::Uint("1".into()),
            Token::Int("0x1F".into()),
            Token::Float("1.5".into()),
            Token::Float(".5".into()),
            Token::Float("2e3".into()),
            Token::Int("1".into()),
            Token::Punct("."),
            Token::Ident("foo".into()),
            Token::Punct("in"),
            Token::Ident("inn".into()),
            Token::String("r'\\d'".into()),
            Token::Bytes("\"x\"".into()),
            Token::String("'''a'b'''".into()),
            Token::End,
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn what_is_no_token_is_reported() {
        let (found, issues) = lex("a | b");
        assert_eq!(found.len(), 3);
        assert!(issues.to_string().contains("<input>:1:3: Syntax error: token recognition error at: '| '"));
    }
}
