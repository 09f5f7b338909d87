//! Static tokens: a file with lines of the form `token,user,uid,"group1,group2"`.

use std::collections::HashMap;

use super::UserInfo;

/// The users by token.
pub struct TokenFile(HashMap<String, UserInfo>);

impl TokenFile {
    /// Parses the file. Source: `k8s.io/apiserver/pkg/authentication/token/tokenfile`.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut tokens = HashMap::new();
        for (number, line) in knarr_reload::text(bytes)?.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let record = record(line).ok_or_else(|| format!("record on line {}: parse error", number + 1))?;
            let [token, name, uid, rest @ ..] = record.as_slice() else {
                return Err(format!(
                    "token file must have at least 3 columns (token, user name, user uid), found {}",
                    record.len()
                ));
            };
            if token.is_empty() {
                tracing::warn!(line = number + 1, "empty token in the token file");
                continue;
            }
            let groups = rest.first().map(String::as_str).unwrap_or("");
            let user = UserInfo {
                name: name.clone(),
                uid: uid.clone(),
                groups: groups
                    .split(',')
                    .map(str::trim)
                    .filter(|g| !g.is_empty())
                    .map(str::to_owned)
                    .collect(),
                ..UserInfo::default()
            };
            tokens.insert(token.clone(), user);
        }
        Ok(Self(tokens))
    }

    pub fn user(&self, token: &str) -> Option<UserInfo> {
        // Compared in constant time: the timing of the map's comparison would reveal how much of a token is correct.
        let found = self.0.iter().find(|(known, _)| {
            ring::digest::digest(&ring::digest::SHA256, known.as_bytes()).as_ref()
                == ring::digest::digest(&ring::digest::SHA256, token.as_bytes()).as_ref()
        });
        found.map(|(_, user)| user.clone().authenticated())
    }
}

/// Parses one line of comma-separated values, with doubled quotes inside quotes; `None` for a stray quote.
fn record(line: &str) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    let mut rest = line.trim_end_matches('\r');
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        let (field, after) = if let Some(quoted) = rest.strip_prefix('"') {
            let mut field = String::new();
            let mut inside = quoted;
            loop {
                let (text, after) = inside.split_once('"')?;
                field.push_str(text);
                match after.strip_prefix('"') {
                    Some(more) => {
                        field.push('"');
                        inside = more;
                    }
                    None => break (field, after),
                }
            }
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            let field = &rest[..end];
            if field.contains('"') {
                return None;
            }
            (field.to_owned(), &rest[end..])
        };
        fields.push(field);
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None if after.trim().is_empty() => return Some(fields),
            None => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lines() {
        let text = "# comment\ntoken1,ann,7\ntoken2,bob,8,\"a, b\"\n,nobody,9\n";
        let file = TokenFile::parse(text.as_bytes()).unwrap();
        assert_eq!(file.user("token1").unwrap().groups, ["system:authenticated"]);
        let bob = file.user("token2").unwrap();
        assert_eq!((bob.name.as_str(), bob.uid.as_str()), ("bob", "8"));
        assert_eq!(bob.groups, ["a", "b", "system:authenticated"]);
        assert!(file.user("").is_none() && file.user("token3").is_none());
        assert!(TokenFile::parse(b"token,user").is_err());
        assert!(TokenFile::parse(b"tok\"en,user,1").is_err());
        assert_eq!(record("a,\"b\"\"c\",d").unwrap(), ["a", "b\"c", "d"]);
    }
}
