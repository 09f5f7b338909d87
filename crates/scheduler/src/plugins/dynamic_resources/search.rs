//! The search: a depth-first search over devices that undoes the choices of failed branches.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{DeviceSelector, ResourceClaim};
use knarr_cel::Value;

use super::allocator::{AllocateError, Cluster, MAX_RESULTS, Tools};
use super::capacity::{Amounts, is_there, taken};
use super::constraint::Constraint;
use super::counters::Counters;
use super::pools::{Candidate, Pool, candidates, node_matches};
use super::request::{ALL, Ask, EXACT_COUNT, Wanted, asked_of, full_name, requests};
use super::selector::{device_value, matches};

/// A request of a claim, or one of its alternatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    claim: usize,
    request: usize,
    alternative: usize,
}

/// A device chosen for a request.
pub struct Chosen {
    pub device: usize,
    pub key: (usize, usize),
    /// The amounts consumed of a shared device.
    pub share: Option<Arc<Amounts>>,
}

/// Why a branch of the search ended early.
enum Stop {
    /// Ends the whole search.
    Error(AllocateError),
    /// The branch needs more devices than a claim can have.
    TooMany,
}

impl From<AllocateError> for Stop {
    fn from(error: AllocateError) -> Self {
        Self::Error(error)
    }
}

/// The state of a search on one node.
pub struct Search<'a> {
    cluster: &'a Cluster,
    node: &'a Node,
    tools: Tools<'a>,
    pub claims: &'a [&'a ResourceClaim],
    pub pools: Vec<Pool<'a>>,
    pub devices: Vec<Candidate<'a>>,
    /// By claim, request and alternative.
    pub wanted: Vec<Vec<Vec<Wanted<'a>>>>,
    /// The chosen alternative of each request, by claim and request.
    pub alternatives: Vec<Vec<usize>>,
    pub chosen: Vec<Vec<Chosen>>,
    constraints: Vec<Vec<Constraint<'a>>>,
    counters: Counters<'a>,
    values: Vec<Option<Value<'static>>>,
    matching: HashMap<(usize, Key), bool>,
    amounts: HashMap<(usize, Key), Option<Arc<Amounts>>>,
    /// The claims that each device is chosen for.
    chosen_for: Vec<Vec<usize>>,
    /// The number of shares of each device chosen so far, with the sum of their amounts.
    shares: Vec<(usize, Amounts)>,
}

impl<'a> Search<'a> {
    /// Prepares a search. Fails when a claim can never be allocated.
    pub fn new(
        cluster: &'a Cluster,
        node: &'a Node,
        claims: &'a [&'a ResourceClaim],
        pools: Vec<Pool<'a>>,
        tools: Tools<'a>,
    ) -> Result<Self, AllocateError> {
        let devices = candidates(&pools);
        let n = devices.len();
        let mut search = Self {
            cluster,
            node,
            tools,
            claims,
            counters: Counters::new(pools.len()),
            pools,
            devices,
            wanted: Vec::new(),
            alternatives: claims.iter().map(|c| vec![0; requests(c).len()]).collect(),
            chosen: claims.iter().map(|_| Vec::new()).collect(),
            constraints: Vec::new(),
            values: (0..n).map(|_| None).collect(),
            matching: HashMap::new(),
            amounts: HashMap::new(),
            chosen_for: vec![Vec::new(); n],
            shares: vec![(0, Amounts::new()); n],
        };
        for (at, claim) in claims.iter().enumerate() {
            search.take_in(at, claim)?;
        }
        Ok(search)
    }

    /// Reads a claim. The error means that the claim can never be allocated.
    fn take_in(&mut self, at: usize, claim: &'a ResourceClaim) -> Result<(), AllocateError> {
        let mut least = 0;
        self.wanted.push(Vec::new());
        for (request, of) in requests(claim).iter().enumerate() {
            self.wanted[at].push(Vec::new());
            let mut least_here = usize::MAX;
            for (alternative, ask) in Ask::of(of).into_iter().enumerate() {
                let key = Key { claim: at, request, alternative };
                let wanted = self.wanted(key, claim, ask)?;
                least_here = least_here.min(wanted.count);
                self.wanted[at][request].push(wanted);
            }
            if least_here == usize::MAX {
                let (claim, name) = (full_name(claim), &of.name);
                return Err(AllocateError::Wrong(format!(
                    "claim {claim}, request {name}: missing device class name (unsupported request type?)"
                )));
            }
            least += least_here;
        }
        if least > MAX_RESULTS {
            return Err(AllocateError::Wrong(format!(
                "claim {}: number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}",
                full_name(claim)
            )));
        }
        let mut constraints = Vec::new();
        let all = asked_of(claim).and_then(|d| d.constraints.as_deref()).unwrap_or_default();
        for (i, constraint) in all.iter().enumerate() {
            constraints.push(Constraint::of(constraint).ok_or_else(|| {
                let claim = full_name(claim);
                AllocateError::Wrong(format!(
                    "claim {claim}, constraint #{i}: empty constraint (unsupported constraint type?)"
                ))
            })?);
        }
        self.constraints.push(constraints);
        Ok(())
    }

    fn wanted(&mut self, key: Key, claim: &ResourceClaim, ask: Ask<'a>) -> Result<Wanted<'a>, AllocateError> {
        let wrong = |what: String| {
            AllocateError::Wrong(format!("claim {}, request {}: {what}", full_name(claim), ask.name))
        };
        if ask.has_derived_attributes {
            return Err(AllocateError::Wrong(format!(
                "claim {}, request {}: cannot handle request with derived attributes, the feature is disabled",
                full_name(claim),
                ask.name
            )));
        }
        if let Some(i) = ask.selectors.iter().position(|s| s.cel.is_none()) {
            return Err(AllocateError::Wrong(format!(
                "claim {}, request {}, selector #{i}: CEL expression empty (unsupported selector type?)",
                full_name(claim),
                ask.name
            )));
        }
        if ask.class_name.is_empty() {
            return Err(wrong("missing device class name (unsupported request type?)".to_owned()));
        }
        let Some(class) = self.cluster.class(ask.class_name) else {
            let name = ask.class_name;
            return Err(wrong(format!(
                "could not retrieve device class {name}: deviceclass.resource.k8s.io {name:?} not found"
            )));
        };
        let mut wanted = Wanted { class: Arc::clone(class), count: 0, all: None, ask: ask.clone() };
        match ask.mode {
            EXACT_COUNT => wanted.count = usize::try_from(ask.count).unwrap_or(0),
            ALL => {
                let all = self.all_devices(key, claim, &wanted)?;
                wanted.count = all.len();
                wanted.all = Some(all);
            }
            other => return Err(wrong(format!("unsupported count mode {other}"))),
        }
        Ok(wanted)
    }

    /// The devices that a request with allocation mode All stands for.
    fn all_devices(
        &mut self,
        key: Key,
        claim: &ResourceClaim,
        wanted: &Wanted<'a>,
    ) -> Result<Vec<usize>, AllocateError> {
        for pool in &self.pools {
            let state = match (pool.incomplete, pool.invalid) {
                (true, _) => "being updated",
                (_, true) => "invalid",
                _ => continue,
            };
            let ((driver, pool), claim, request) = (pool.id, full_name(claim), wanted.ask.name);
            return Err(AllocateError::Wrong(format!(
                "claim {claim}, request {request}: asks for all devices, but resource pool {driver}/{pool} is \
                 currently {state}"
            )));
        }
        let mut all = Vec::new();
        for device in 0..self.devices.len() {
            self.tools.patience.step()?;
            if !self.is_selectable(key, wanted, device)? {
                continue;
            }
            // Other claims' use does not count here: a device in use is part of "all" as well.
            let Some(amounts) = self.amounts(key, claim, &wanted.ask, device)? else { continue };
            let capacity = self.devices[device].device.capacity.clone().unwrap_or_default();
            let fits = is_there(&amounts, &capacity, None, None);
            if fits.map_err(|e| self.capacity_error(claim, &wanted.ask, device, &e))? {
                all.push(device);
            }
        }
        Ok(all)
    }

    /// Returns whether a solution exists, which is then in `chosen`.
    pub fn run(&mut self) -> Result<bool, AllocateError> {
        match self.claim(0) {
            Ok(found) => Ok(found),
            Err(Stop::Error(error)) => Err(error),
            Err(Stop::TooMany) => Ok(false),
        }
    }

    /// Allocates this claim and all after it.
    fn claim(&mut self, claim: usize) -> Result<bool, Stop> {
        if claim >= self.claims.len() {
            return Ok(true);
        }
        self.request(claim, 0)
    }

    /// Allocates this request and all after it.
    fn request(&mut self, claim: usize, request: usize) -> Result<bool, Stop> {
        self.tools.patience.step()?;
        let Some(alternatives) = self.wanted[claim].get(request).map(Vec::len) else {
            return match self.claim(claim + 1) {
                // With other choices for this claim, the next one may need fewer devices.
                Err(Stop::TooMany) => Ok(false),
                other => other,
            };
        };
        if self.wanted[claim][request][0].ask.parent.is_none() {
            return self.device(Key { claim, request, alternative: 0 }, 0, 0);
        }
        let mut always_too_many = true;
        for alternative in 0..alternatives {
            match self.device(Key { claim, request, alternative }, 0, 0) {
                Err(Stop::TooMany) => {}
                Err(stop) => return Err(stop),
                Ok(true) => {
                    self.alternatives[claim][request] = alternative;
                    return Ok(true);
                }
                Ok(false) => always_too_many = false,
            }
        }
        if always_too_many { Err(Stop::TooMany) } else { Ok(false) }
    }

    fn wants(&self, key: Key) -> &Wanted<'a> {
        &self.wanted[key.claim][key.request][key.alternative]
    }

    /// Allocates the `nth` device of a request, and everything after it. The devices of one request are tried in order,
    /// from `start` on, so that each set of devices is tried once.
    fn device(&mut self, key: Key, nth: usize, start: usize) -> Result<bool, Stop> {
        self.tools.patience.step()?;
        let count = self.wants(key).count;
        if self.wants(key).all.as_ref().is_some_and(Vec::is_empty) {
            return Ok(false);
        }
        if nth >= count {
            return self.request(key.claim, key.request + 1);
        }
        if self.chosen[key.claim].len() + count - nth > MAX_RESULTS {
            return Err(Stop::TooMany);
        }
        if let Some(all) = &self.wants(key).all {
            let device = all[nth];
            if !self.choose(key, device, true)? {
                return Ok(false);
            }
            let done = self.device(key, nth + 1, 0);
            if !matches!(done, Ok(true)) {
                self.put_back(key);
            }
            return done;
        }
        for device in start..self.devices.len() {
            self.tools.patience.step()?;
            if !self.is_free(key, device) || !self.fits(key, device)? || !self.choose(key, device, false)? {
                continue;
            }
            let done = self.device(key, nth + 1, device + 1);
            if matches!(done, Ok(true)) {
                return done;
            }
            self.put_back(key);
            done?;
        }
        Ok(false)
    }

    fn is_free(&self, key: Key, device: usize) -> bool {
        if self.wants(key).ask.is_admin() {
            return !self.chosen_for[device].contains(&key.claim);
        }
        self.chosen_for[device].is_empty() && !self.cluster.taken.whole.contains(&self.devices[device].id)
    }

    /// Returns whether the device is selected by the request and has the requested capacities.
    fn fits(&mut self, key: Key, device: usize) -> Result<bool, AllocateError> {
        if let Some(known) = self.matching.get(&(device, key)) {
            if !known {
                return Ok(false);
            }
        } else {
            // The ask is cloned, because `self` is borrowed mutably below.
            let wanted = self.wanted[key.claim][key.request][key.alternative].ask.clone();
            let class = Arc::clone(&self.wants(key).class);
            let wanted = Wanted { ask: wanted, class, count: 0, all: None };
            if !self.is_selectable(key, &wanted, device)? {
                return Ok(false);
            }
        }
        let ask = self.wants(key).ask.clone();
        Ok(self.amounts(key, self.claims[key.claim], &ask, device)?.is_some())
    }

    fn is_selectable(&mut self, key: Key, wanted: &Wanted, device: usize) -> Result<bool, AllocateError> {
        if let Some(known) = self.matching.get(&(device, key)) {
            return Ok(*known);
        }
        let class = &wanted.class;
        let class_name = class.metadata.name.as_deref().unwrap_or_default();
        let of_class = class.spec.as_ref().and_then(|s| s.selectors.as_deref()).unwrap_or_default();
        let claim = || format!("claim {}", full_name(self.claims[key.claim]));
        let (by_class, by_request) = (format!("class {class_name}"), claim());
        let (slice, of) = (self.devices[device].slice, self.devices[device].device);
        let selected = self.select(&by_class, of_class, device)?
            && self.select(&by_request, wanted.ask.selectors, device)?
            && (slice.spec.per_device_node_selection != Some(true)
                || node_matches(self.node, of.node_name.as_deref(), of.all_nodes, of.node_selector.as_ref()));
        self.matching.insert((device, key), selected);
        Ok(selected)
    }

    fn select(
        &mut self,
        whose: &str,
        selectors: &[DeviceSelector],
        device: usize,
    ) -> Result<bool, AllocateError> {
        for (i, selector) in selectors.iter().enumerate() {
            let source = selector.cel.as_ref().map_or("", |c| c.expression.as_str());
            let program = self.tools.programs.get(source);
            let program = (*program).as_ref().map_err(|error| {
                AllocateError::Wrong(format!("{whose}: selector #{i}: CEL compile error: {error}"))
            })?;
            let candidate = &self.devices[device];
            let failed = |error: String| {
                let id = &candidate.id;
                AllocateError::Wrong(format!(
                    "{whose}: selector #{i} on device {id}: CEL runtime error: {error}"
                ))
            };
            if self.values[device].is_none() {
                let value = device_value(&candidate.id.driver, candidate.device).map_err(failed)?;
                self.values[device] = Some(value);
            }
            let Some(value) = &self.values[device] else { continue };
            let over = || self.tools.patience.is_over();
            match matches(program, value, &over) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(_) if over() => return Err(AllocateError::TimedOut),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(true)
    }

    fn capacity_error(
        &self,
        claim: &ResourceClaim,
        ask: &Ask,
        device: usize,
        error: &dyn std::error::Error,
    ) -> AllocateError {
        let (claim, name, id) = (full_name(claim), ask.name, &self.devices[device].id);
        AllocateError::Wrong(format!(
            "claim {claim}, request {name}: checking capacity for device {id}: {error}"
        ))
    }

    /// The amounts that the request consumes of the device; `None` when the device does not have all requested
    /// capacities.
    fn amounts(
        &mut self,
        key: Key,
        claim: &ResourceClaim,
        ask: &Ask,
        device: usize,
    ) -> Result<Option<Arc<Amounts>>, AllocateError> {
        if let Some(known) = self.amounts.get(&(device, key)) {
            return Ok(known.clone());
        }
        let amounts = match &self.devices[device].device.capacity {
            Some(capacity) => taken(ask.capacity, capacity),
            None if ask.capacity.is_some_and(|c| !c.is_empty()) => Ok(None),
            None => Ok(Some(Amounts::new())),
        };
        let amounts = amounts.map_err(|e| self.capacity_error(claim, ask, device, &e))?.map(Arc::new);
        self.amounts.insert((device, key), amounts.clone());
        Ok(amounts)
    }

    /// Chooses the device for the request if taints, counters, constraints and capacity allow it. With `must`, the
    /// request needs exactly this device, and a violated constraint is an error.
    fn choose(&mut self, key: Key, device: usize, must: bool) -> Result<bool, AllocateError> {
        let (of, driver) = (self.devices[device].device, self.devices[device].id.driver.clone());
        let ask = self.wants(key).ask.clone();
        let shared = of.allow_multiple_allocations == Some(true);
        if ask.is_admin() && !shared && self.chosen_for[device].contains(&key.claim) {
            return Ok(false);
        }
        if !ask.is_admin() && !self.is_free(key, device) {
            return Ok(false);
        }
        let taints = of.taints.as_deref().unwrap_or_default();
        if ask.is_kept_off(taints) {
            return Ok(false);
        }
        if !self.reserve_counters(device) {
            return Ok(false);
        }
        let (request, alternative) = ask.names();
        let constraints = &mut self.constraints[key.claim];
        let no = constraints.iter_mut().position(|c| !c.add(request, alternative, &driver, of));
        if let Some(no) = no {
            constraints[..no].iter_mut().for_each(|c| c.remove(request, alternative));
            self.release_counters(device);
            if must {
                let (claim, id) = (full_name(self.claims[key.claim]), &self.devices[device].id);
                return Err(AllocateError::Wrong(format!(
                    "claim {claim}, request {}: cannot add device {id} because a claim constraint would not be satisfied",
                    ask.name
                )));
            }
            return Ok(false);
        }
        let amounts = self.amounts(key, self.claims[key.claim], &ask, device)?.unwrap_or_default();
        if !self.has_capacity(key, &ask, device, &amounts)? {
            self.constraints[key.claim].iter_mut().for_each(|c| c.remove(request, alternative));
            self.release_counters(device);
            return Ok(false);
        }
        if shared {
            let (n, sum) = &mut self.shares[device];
            *n += 1;
            for (name, amount) in amounts.iter() {
                match sum.get_mut(name) {
                    Some(sum) => sum.add(amount),
                    None => drop(sum.insert(name.clone(), amount.clone())),
                }
            }
        } else {
            self.chosen_for[device].push(key.claim);
        }
        let share = shared.then_some(amounts);
        self.chosen[key.claim].push(Chosen { device, key: (key.request, key.alternative), share });
        Ok(true)
    }

    fn has_capacity(
        &self,
        key: Key,
        ask: &Ask,
        device: usize,
        amounts: &Amounts,
    ) -> Result<bool, AllocateError> {
        let Some(capacity) = &self.devices[device].device.capacity else { return Ok(true) };
        let in_use = self.cluster.taken.shared.get(&self.devices[device].id);
        let there = is_there(amounts, capacity, in_use, Some(&self.shares[device].1));
        there.map_err(|e| self.capacity_error(self.claims[key.claim], ask, device, &e))
    }

    /// Returns whether the device has other shares already: then its counters are reserved already.
    fn is_shared_already(&self, device: usize) -> bool {
        self.devices[device].device.allow_multiple_allocations == Some(true)
            && (self.shares[device].0 > 0 || self.cluster.taken.shared.contains_key(&self.devices[device].id))
    }

    fn reserve_counters(&mut self, device: usize) -> bool {
        let of = self.devices[device].device;
        if of.consumes_counters.is_none() || self.is_shared_already(device) {
            return true;
        }
        let pool = self.devices[device].pool;
        self.counters.reserve(&self.pools[pool], pool, of, &self.cluster.taken)
    }

    /// Releases the counters of a device that is not chosen, or no longer.
    fn release_counters(&mut self, device: usize) {
        if !self.is_shared_already(device) {
            self.counters.release(self.devices[device].pool, self.devices[device].device);
        }
    }

    /// Undoes the last choice for the claim.
    fn put_back(&mut self, key: Key) {
        let Some(last) = self.chosen[key.claim].pop() else { return };
        let device = last.device;
        match last.share {
            Some(amounts) => {
                let (n, sum) = &mut self.shares[device];
                *n = n.saturating_sub(1);
                for (name, amount) in amounts.iter() {
                    if let Some(sum) = sum.get_mut(name) {
                        sum.sub(amount);
                    }
                }
            }
            None => drop(self.chosen_for[device].pop()),
        }
        let (request, alternative) = self.wants(key).ask.names();
        self.constraints[key.claim].iter_mut().for_each(|c| c.remove(request, alternative));
        self.release_counters(device);
    }
}
