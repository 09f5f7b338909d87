//! The graph of which module of a crate uses which, and the cycles in it.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{self, Named};
use super::text;

/// A module's path in its crate: `["registry", "create"]`; the root is empty.
pub type Place = Vec<String>;

/// The modules of a crate: by module path, the path of the file from the crate's `src`, and its text.
pub struct Crate {
    files: BTreeMap<Place, String>,
    uses: BTreeMap<Place, BTreeSet<Place>>,
}

impl Crate {
    /// Builds the crate from files with their paths below `src` and their texts, leaving out tests.
    pub fn new(sources: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut files = BTreeMap::new();
        let mut read = BTreeMap::new();
        for (path, text) in sources {
            let place = place(&path);
            let (named, rest) = imports::uses(&text::code(&text));
            read.insert(place.clone(), (named, imports::paths(&rest)));
            files.insert(place, path);
        }
        let resolver = Resolver { files: &files, read: &read };
        let uses = read.iter().map(|(at, (named, paths))| {
            // A re-export counts for the modules that import it, not for this one.
            let all = named.iter().filter(|n| !n.public).map(|n| &n.path).chain(paths);
            let used = all.filter_map(|path| resolver.resolve(at, path, 0)).filter(|to| to != at);
            (at.clone(), used.collect())
        });
        let uses = uses.collect();
        Self { files, uses }
    }

    /// Returns the sets of two and more files that all reach each other, each file by its path.
    pub fn circles(&self) -> Vec<Vec<&str>> {
        let mut search = Search::of(&self.uses);
        for place in self.files.keys() {
            if !search.index.contains_key(place) {
                search.visit(place);
            }
        }
        let path = |place: &&Place| self.files.get(*place).map_or("", String::as_str);
        let mut circles: Vec<Vec<&str>> =
            search.found.iter().map(|circle| circle.iter().map(path).collect()).collect();
        circles.iter_mut().for_each(|circle| circle.sort_unstable());
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

fn place(path: &str) -> Place {
    let mut place: Place = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if place.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        place.pop();
    }
    place
}

type Read = BTreeMap<Place, (Vec<Named>, Vec<Vec<String>>)>;

struct Resolver<'a> {
    files: &'a BTreeMap<Place, String>,
    read: &'a Read,
}

impl Resolver<'_> {
    /// Returns the module that a path leads to, through imports of other modules; `None` for other crates.
    fn resolve(&self, from: &Place, path: &[String], depth: usize) -> Option<Place> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Place::new(),
            "self" => from.clone(),
            "super" => parent(from),
            child => {
                let at = join(from, child);
                self.files.contains_key(&at).then_some(at)?
            }
        };
        while let Some(("super", after)) = rest.split_first().map(|(f, r)| (f.as_str(), r)) {
            (at, rest) = (parent(&at), after);
        }
        while let Some((name, after)) = rest.split_first() {
            let below = join(&at, name);
            if self.files.contains_key(&below) {
                (at, rest) = (below, after);
                continue;
            }
            let known = self.read.get(&at).and_then(|(named, _)| named.iter().find(|n| n.name == *name));
            if let Some(named) = known.filter(|_| depth < 8) {
                let mut through = named.path.clone();
                through.extend(after.iter().cloned());
                return self.resolve(&at, &through, depth + 1);
            }
            break;
        }
        Some(at)
    }
}

fn parent(place: &Place) -> Place {
    place[..place.len().saturating_sub(1)].to_vec()
}

fn join(place: &Place, name: &str) -> Place {
    let mut place = place.clone();
    place.push(name.to_owned());
    place
}

/// Tarjan's search for strongly connected components.
struct Search<'a> {
    uses: &'a BTreeMap<Place, BTreeSet<Place>>,
    index: BTreeMap<&'a Place, usize>,
    low: BTreeMap<&'a Place, usize>,
    stack: Vec<&'a Place>,
    found: Vec<Vec<&'a Place>>,
}

impl<'a> Search<'a> {
    fn of(uses: &'a BTreeMap<Place, BTreeSet<Place>>) -> Self {
        Self { uses, index: BTreeMap::new(), low: BTreeMap::new(), stack: Vec::new(), found: Vec::new() }
    }

    fn visit(&mut self, at: &'a Place) {
        let number = self.index.len();
        self.index.insert(at, number);
        self.low.insert(at, number);
        self.stack.push(at);
        for to in self.uses.get(at).into_iter().flatten() {
            if !self.index.contains_key(to) {
                self.visit(to);
                let low = self.low.get(to).copied().unwrap_or(number);
                self.lower(at, low);
            } else if self.stack.contains(&to) {
                let index = self.index.get(to).copied().unwrap_or(number);
                self.lower(at, index);
            }
        }
        if self.low.get(at) == Some(&number) {
            let from = self.stack.iter().position(|place| *place == at).unwrap_or(0);
            let circle = self.stack.split_off(from);
            if circle.len() > 1 {
                self.found.push(circle);
            }
        }
    }

    fn lower(&mut self, at: &'a Place, to: usize) {
        let low = self.low.entry(at).or_insert(to);
        *low = to.min(*low);
    }
}

#[test]
fn circles_are_found_through_what_modules_hand_on() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let made = Crate::new([
        file("lib.rs", "mod a; mod b; mod c; pub use a::A;"),
        file("a/mod.rs", "mod inner; pub use inner::Inner as A;"),
        file("a/inner.rs", "use crate::b::B;"),
        file("b.rs", "fn f(_: crate::A) {}"),
        file("c.rs", "use crate::b::B; // use crate::a"),
    ]);
    assert_eq!(made.circles(), [vec!["a/inner.rs", "b.rs"]]);
}
