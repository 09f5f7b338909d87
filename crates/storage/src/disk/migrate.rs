//! Migrates a database from an older format to the current one: step after step, all in one transaction.
//!
//! A change of the meaning of rows is a step in this file, added at the end of [`STEPS`]. `fixtures/` contains a file
//! of each former format; tests open all of them.

use redb::{Database, ReadableDatabase, WriteTransaction};

use super::journal::{META, META_FORMAT};
use super::load::LoadError;

/// The oldest supported format.
pub(super) const OLDEST: u64 = 1;
/// The steps, each from one format to the next.
pub(super) const STEPS: &[Step] = &[];

/// The format that this version writes.
pub(super) const FORMAT: u64 = newest(STEPS);

/// Migrates everything from one format to the next. The changes are kept only if all steps succeed.
pub(super) type Step = fn(&WriteTransaction) -> Result<(), redb::Error>;

/// The format that these steps lead to.
pub(super) const fn newest(steps: &[Step]) -> u64 {
    OLDEST + steps.len() as u64
}

/// Migrates a database to the format that the steps lead to. A newer format is refused, because its content would be
/// misread.
pub(super) fn migrate(database: &Database, steps: &[Step]) -> Result<(), LoadError> {
    let found = database.begin_read()?.open_table(META)?.get(META_FORMAT)?.map(|format| format.value());
    let found = found.ok_or(LoadError::Foreign)?;
    let newest = newest(steps);
    if !(OLDEST..=newest).contains(&found) {
        return Err(LoadError::Format(found));
    }
    let done = usize::try_from(found - OLDEST).unwrap_or(usize::MAX);
    let due = steps.get(done..).unwrap_or_default();
    if due.is_empty() {
        return Ok(());
    }
    let txn = database.begin_write()?;
    due.iter().try_for_each(|step| step(&txn))?;
    txn.open_table(META)?.insert(META_FORMAT, newest)?;
    txn.commit()?;
    tracing::info!(from = found, to = newest, "migrated the store to a newer format");
    Ok(())
}
