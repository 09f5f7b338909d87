//! Runs the PostFilter plugins of a profile for a pod that fits on no node.

use std::sync::Arc;

use super::points::{Attempt, NoRoom, PostFilter, Room};
use super::profile::Profile;
use super::status::Code;

/// Rooms, with the plugin that found them.
pub type FoundRooms<'a> = (&'a Arc<dyn PostFilter>, Vec<Room>);

/// Returns the rooms of the first PostFilter plugin that finds any. The error joins the messages of all plugins; it is
/// `None` when the profile has no PostFilter plugin.
pub fn make_room<'a>(profile: &'a Profile, attempt: &Attempt) -> Result<FoundRooms<'a>, Option<NoRoom>> {
    let mut failure: Option<NoRoom> = None;
    for plugin in &profile.points.post_filter {
        let found = profile.timed("PostFilter", plugin.name(), || {
            let found = plugin.post_filter(attempt);
            let code = if found.is_ok() { Code::Success } else { Code::Unschedulable };
            (found, code)
        });
        match found {
            Ok(rooms) => return Ok((plugin, rooms)),
            Err(none) => match &mut failure {
                Some(failure) => failure.join(none),
                None => failure = Some(none),
            },
        }
    }
    Err(failure)
}
