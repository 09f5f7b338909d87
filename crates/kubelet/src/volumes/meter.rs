//! Who knows how full a volume is.

use super::csi::Measured;

/// Who knows how full a volume is.
#[derive(Debug, Clone, PartialEq)]
pub enum Meter {
    /// The file system that it is.
    FileSystem,
    Driver(Measured),
}
