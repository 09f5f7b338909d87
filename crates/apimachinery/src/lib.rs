//! The rules of Kubernetes API objects, without any I/O: names, selectors, quantities, patches, errors, schemas.

pub mod accept;
pub mod clock;
pub mod duration;
pub mod field;
pub mod gvk;
pub mod jsonpath;
pub mod metrics;
pub mod names;
pub mod patch;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod status;
pub mod structural;
pub mod zpages;
