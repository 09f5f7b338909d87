//! Asks the PostFilter plugins of a profile for room for a pod that fits nowhere.

use std::sync::Arc;

use super::points::{Attempt, NoRoom, PostFilter, Room};
use super::profile::Profile;
use super::status::Code;

/// Rooms, with the plugin that found them.
pub type FoundRooms<'a> = (&'a Arc<dyn PostFilter>, Vec<Room>);

/// The rooms that the first of the PostFilter plugins finds; otherwise what all of them said.
pub fn make_room<'a>(profile: &'a Profile, attempt: &Attempt) -> Result<FoundRooms<'a>, Option<NoRoom>> {
    let mut said: Option<NoRoom> = None;
    for plugin in &profile.points.post_filter {
        let found = profile.timed("PostFilter", plugin.name(), || {
            let found = plugin.post_filter(attempt);
            let code = if found.is_ok() { Code::Success } else { Code::Unschedulable };
            (found, code)
        });
        match found {
            Ok(rooms) => return Ok((plugin, rooms)),
            Err(none) => match &mut said {
                Some(said) => said.join(none),
                None => said = Some(none),
            },
        }
    }
    Err(said)
}
