//! How the usage of a volume is measured.

use super::csi::Measured;

/// How the usage of a volume is measured.
#[derive(Debug, Clone, PartialEq)]
pub enum Meter {
    /// By the statistics of its file system.
    FileSystem,
    Driver(Measured),
}
