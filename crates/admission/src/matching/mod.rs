//! What webhooks and policies have in common: which requests they match, and in which form they get them.

mod concerned;
mod forms;
mod invocation;
mod rule;
mod select;
pub mod versions;

pub use concerned::{Concerned, GROUP, concerned_policies};
pub use forms::{presented, whole};
pub use invocation::Invocation;
pub use rule::{Rule, selector, strings};
pub use select::{by_rules, in_selected_namespace, object_selected};
