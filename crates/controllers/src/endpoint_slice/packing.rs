//! Which endpoints go into which slice, changing as few slices as possible.
//!
//! Source: the behaviour of `k8s.io/endpointslice`.

use std::collections::BTreeMap;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

/// The endpoints of one set of ports, in slices.
#[derive(Debug, Default, PartialEq)]
pub struct Packed {
    /// Slices that are kept, with their new endpoints.
    pub keep: Vec<(EndpointSlice, Vec<Endpoint>)>,
    /// The endpoints of new slices.
    pub create: Vec<Vec<Endpoint>>,
    /// Slices without endpoints.
    pub spare: Vec<EndpointSlice>,
    /// How many endpoints are added, and how many are removed.
    pub added: usize,
    pub removed: usize,
}

/// Endpoints that are listed stay in their slices. New ones go into slices that change anyway, the fullest first; the
/// rest goes into one slice that has room for all of it, or else into new slices of at most `most` endpoints.
///
/// `is_outdated` reports whether a slice must be written for other reasons than its endpoints.
pub fn pack(
    wanted: Vec<Endpoint>,
    mine: Vec<EndpointSlice>,
    is_outdated: impl Fn(&EndpointSlice) -> bool,
    most: usize,
) -> Packed {
    let mut wanted: BTreeMap<String, Endpoint> = wanted.into_iter().map(|e| (key(&e), e)).collect();
    let mut packed = Packed::default();
    let (mut changing, mut resting) = (Vec::new(), Vec::new());
    for slice in mine {
        let listed = slice.endpoints.as_deref().unwrap_or_default();
        let stay: Vec<Endpoint> = listed.iter().filter_map(|e| wanted.remove(&key(e))).collect();
        packed.removed += listed.len() - stay.len();
        if stay == listed && !is_outdated(&slice) {
            resting.push((slice, stay));
        } else if stay.is_empty() && !listed.is_empty() {
            packed.spare.push(slice);
        } else {
            changing.push((slice, stay));
        }
    }
    let mut rest: Vec<Endpoint> = wanted.into_values().collect();
    packed.added = rest.len();
    changing.sort_by_key(|(_, endpoints): &(_, Vec<_>)| std::cmp::Reverse(endpoints.len()));
    for (_, endpoints) in &mut changing {
        let room = most.saturating_sub(endpoints.len());
        endpoints.extend(rest.drain(..room.min(rest.len())));
    }
    while !rest.is_empty() {
        let has_room = |(_, endpoints): &&mut (_, Vec<_>)| endpoints.len() + rest.len() <= most;
        let roomy = resting.iter_mut().filter(has_room).max_by_key(|(_, endpoints)| endpoints.len());
        match roomy.filter(|_| rest.len() < most) {
            Some((_, endpoints)) => endpoints.append(&mut rest),
            None => packed.create.push(rest.drain(..most.min(rest.len())).collect()),
        }
    }
    packed.keep = changing;
    packed.keep.append(&mut resting);
    packed
}

/// Returns the key of an endpoint: its pod's uid and its addresses.
pub fn key(endpoint: &Endpoint) -> String {
    let uid = endpoint.target_ref.as_ref().and_then(|t| t.uid.as_deref()).unwrap_or_default();
    format!("{uid} {}", endpoint.addresses.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(number: usize) -> Endpoint {
        Endpoint { addresses: vec![format!("10.0.0.{number:03}")], ..Endpoint::default() }
    }

    fn slice(name: &str, numbers: std::ops::Range<usize>) -> EndpointSlice {
        let mut slice = EndpointSlice::default();
        slice.metadata.name = Some(name.to_owned());
        slice.endpoints = Some(numbers.map(endpoint).collect()).filter(|e: &Vec<_>| !e.is_empty());
        slice
    }

    /// Returns the slices with their numbers of endpoints, new ones as "new", and the spare ones.
    fn packed(
        wanted: &[usize],
        mine: Vec<EndpointSlice>,
        most: usize,
    ) -> (Vec<(String, usize)>, Vec<String>) {
        let name = |slice: &EndpointSlice| slice.metadata.name.clone().unwrap();
        let packed = pack(wanted.iter().map(|n| endpoint(*n)).collect(), mine, |_| false, most);
        let mut all: Vec<_> = packed.keep.iter().map(|(slice, e)| (name(slice), e.len())).collect();
        all.extend(packed.create.iter().map(|e| ("new".to_owned(), e.len())));
        all.sort();
        (all, packed.spare.iter().map(name).collect())
    }

    #[test]
    fn new_endpoints_go_where_the_fewest_slices_change() {
        let all = |numbers: std::ops::Range<usize>| numbers.collect::<Vec<_>>();
        let of = |sizes: &[(&str, usize)]| -> Vec<(String, usize)> {
            sizes.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
        };
        // There are no slices yet.
        assert_eq!(packed(&all(0..5), vec![], 2).0, of(&[("new", 1), ("new", 2), ("new", 2)]));
        // One endpoint more goes into the fullest slice that has room.
        let there = || vec![slice("a", 0..1), slice("b", 10..12), slice("c", 20..24)];
        let mut wanted = vec![0, 10, 11, 20, 21, 22, 23, 30];
        assert_eq!(packed(&wanted, there(), 4).0, of(&[("a", 1), ("b", 3), ("c", 4)]));
        // Three more fit only into "a"; six fit nowhere, so a new slice is filled first.
        wanted.extend([31, 32]);
        assert_eq!(packed(&wanted, there(), 4).0, of(&[("a", 4), ("b", 2), ("c", 4)]));
        wanted.extend([33, 34, 35]);
        assert_eq!(packed(&wanted, there(), 4).0, of(&[("a", 1), ("b", 4), ("c", 4), ("new", 4)]));
        // A slice that changes anyway takes the new endpoint, though another slice would become fuller.
        let wanted = [0, 10, 11, 20, 30];
        assert_eq!(packed(&wanted, there(), 4).0, of(&[("a", 1), ("b", 2), ("c", 2)]));
        // A slice that loses all its endpoints is spare.
        assert_eq!(packed(&[0], there(), 4), (of(&[("a", 1)]), vec!["b".to_owned(), "c".to_owned()]));
    }
}
