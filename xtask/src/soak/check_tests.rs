//! Tests the checks on handwritten histories: every wrong one is found, and the right ones pass.

use super::check::check;
use super::history::{Answer, Change, Event, History, List, Op, Request, Revision, State, Stream};

const KEY: &str = "configmaps/a";

fn state(value: u64, revision: Revision) -> State {
    State { value, revision }
}

fn op(request: Request, answer: Answer, call: u64, end: u64) -> Op {
    Op { client: 0, key: KEY.into(), request, answer, call, end }
}

fn create(value: u64, answer: Answer, call: u64, end: u64) -> Op {
    op(Request::Create { value }, answer, call, end)
}

fn get(answer: Answer, call: u64, end: u64) -> Op {
    op(Request::Get, answer, call, end)
}

fn ops(ops: Vec<Op>) -> History {
    History { from: 0, ops, ..History::default() }
}

fn changed(change: Change, key: &str, value: u64, revision: Revision) -> Event {
    Event::Changed { change, key: key.into(), state: state(value, revision) }
}

fn stream(watcher: u32, from: Revision, events: Vec<Event>) -> Stream {
    Stream { watcher, resource: "configmaps".into(), from, older_than_server: false, events }
}

fn list(revision: Revision, found: &[(&str, State)], call: u64, end: u64) -> List {
    let found = found.iter().map(|(key, state)| ((*key).to_owned(), *state)).collect();
    List { client: 0, resource: "configmaps".into(), revision, found, call, end }
}

fn right(history: &History) {
    assert_eq!(check(history), Vec::<String>::new());
}

/// Checks that exactly one violation is found, and that its text contains these words.
fn wrong(history: &History, words: &str) {
    let found = check(history);
    assert!(found.iter().any(|sentence| sentence.contains(words)), "not `{words}`: {found:?}");
}

#[test]
fn a_quiet_history_is_right() {
    right(&ops(vec![
        get(Answer::Absent, 0, 1),
        create(1, Answer::Wrote(5), 2, 3),
        create(2, Answer::Exists, 4, 5),
        op(Request::Update { value: 3, at: 4 }, Answer::Conflict, 6, 7),
        op(Request::Update { value: 4, at: 5 }, Answer::Wrote(6), 8, 9),
        op(Request::Patch { value: 5 }, Answer::Wrote(8), 10, 11),
        get(Answer::Saw(state(5, 8)), 12, 13),
        op(Request::Delete { at: Some(6) }, Answer::Conflict, 14, 15),
        op(Request::Delete { at: Some(8) }, Answer::Deleted, 16, 17),
        op(Request::Patch { value: 6 }, Answer::Absent, 18, 19),
        get(Answer::Absent, 20, 21),
    ]));
}

#[test]
fn operations_at_the_same_time_may_come_in_any_order() {
    for seen in [Answer::Absent, Answer::Saw(state(1, 5))] {
        right(&ops(vec![create(1, Answer::Wrote(5), 0, 10), get(seen, 1, 9)]));
    }
    // The patches' revisions give their order, which differs from that of their calls.
    right(&ops(vec![
        create(1, Answer::Wrote(5), 0, 1),
        op(Request::Patch { value: 2 }, Answer::Wrote(7), 2, 9),
        op(Request::Patch { value: 3 }, Answer::Wrote(6), 3, 8),
        get(Answer::Saw(state(2, 7)), 10, 11),
    ]));
}

#[test]
fn lost_and_stale_answers_are_found() {
    let words = "no order explains the answers";
    // An acknowledged write is lost.
    wrong(&ops(vec![create(1, Answer::Wrote(5), 0, 1), get(Answer::Absent, 2, 3)]), words);
    // An old value is read after the new one was acknowledged.
    let updated = op(Request::Update { value: 2, at: 5 }, Answer::Wrote(6), 2, 3);
    let stale = get(Answer::Saw(state(1, 5)), 4, 5);
    wrong(&ops(vec![create(1, Answer::Wrote(5), 0, 1), updated.clone(), stale]), words);
    // Two updates of the same revision succeed.
    let twice = op(Request::Update { value: 3, at: 5 }, Answer::Wrote(7), 4, 5);
    wrong(&ops(vec![create(1, Answer::Wrote(5), 0, 1), updated, twice]), words);
    // A deleted object reappears.
    let deleted = op(Request::Delete { at: None }, Answer::Deleted, 2, 3);
    let again = get(Answer::Saw(state(1, 5)), 4, 5);
    wrong(&ops(vec![create(1, Answer::Wrote(5), 0, 1), deleted, again]), words);
    // Of two readers, one after the other, the first sees a write and the second does not.
    let first = get(Answer::Saw(state(1, 5)), 1, 2);
    wrong(&ops(vec![create(1, Answer::Wrote(5), 0, 10), first, get(Answer::Absent, 3, 4)]), words);
}

#[test]
fn writes_without_an_answer_may_be_done_late_or_never() {
    let unknown = create(1, Answer::Unknown, 0, 1);
    right(&ops(vec![unknown.clone(), get(Answer::Absent, 2, 3)]));
    right(&ops(vec![unknown.clone(), get(Answer::Absent, 2, 3), get(Answer::Saw(state(1, 7)), 4, 5)]));
    // But it is not undone.
    let undone = vec![unknown.clone(), get(Answer::Saw(state(1, 7)), 2, 3), get(Answer::Absent, 4, 5)];
    wrong(&ops(undone.clone()), "no order");
    // Unless a deletion without an answer did so.
    let deletion = op(Request::Delete { at: None }, Answer::Unknown, 3, 4);
    right(&ops([undone, vec![deletion]].concat()));
    // A write has no effect before its request.
    wrong(&ops(vec![create(1, Answer::Unknown, 5, 6), get(Answer::Saw(state(1, 7)), 0, 1)]), "no order");
    // Many of them do not make the search long.
    let many = (0..40).map(|i| op(Request::Delete { at: None }, Answer::Unknown, i, i + 1));
    let writes = (0..40).map(|i| create(i, Answer::Wrote(i + 1), 100 + 2 * i, 101 + 2 * i));
    right(&ops(many.chain(writes).collect()));
}

#[test]
fn refused_writes_have_no_effect() {
    wrong(&ops(vec![create(1, Answer::Refused, 0, 1), get(Answer::Saw(state(1, 5)), 2, 3)]), "no order");
    let mut history = ops(vec![create(1, Answer::Refused, 0, 1)]);
    history.streams = vec![stream(0, 0, vec![changed(Change::Added, KEY, 1, 5)])];
    wrong(&history, "was not written");
}

#[test]
fn revisions_are_unique_and_grow() {
    let other =
        |value, answer, call, end| Op { key: "configmaps/b".into(), ..create(value, answer, call, end) };
    right(&ops(vec![create(1, Answer::Wrote(5), 0, 1), other(2, Answer::Wrote(6), 2, 3)]));
    wrong(
        &ops(vec![create(1, Answer::Wrote(5), 0, 2), other(2, Answer::Wrote(5), 1, 3)]),
        "have the revision 5",
    );
    wrong(&ops(vec![create(1, Answer::Wrote(5), 0, 1), other(2, Answer::Wrote(4), 2, 3)]), "came after");
    // For concurrent operations, either order is right.
    right(&ops(vec![create(1, Answer::Wrote(5), 0, 3), other(2, Answer::Wrote(4), 2, 3)]));
    let mut history = ops(vec![create(1, Answer::Wrote(5), 0, 1)]);
    history.lists = vec![list(4, &[(KEY, state(1, 5))], 2, 3)];
    wrong(&history, "a list of configmaps at revision 4 came after");
}

#[test]
fn lists_are_as_linearizable_as_gets() {
    let mut history = ops(vec![create(1, Answer::Wrote(5), 0, 1)]);
    history.lists = vec![list(5, &[(KEY, state(1, 5))], 2, 3)];
    right(&history);
    history.lists = vec![list(5, &[], 2, 3)];
    wrong(&history, "no order");
}

/// Three changes of two objects that one watch shows correctly.
fn watched() -> History {
    let other = "configmaps/b";
    History {
        streams: vec![stream(
            0,
            2,
            vec![
                changed(Change::Added, KEY, 1, 3),
                changed(Change::Added, other, 2, 4),
                Event::Bookmark(6),
                changed(Change::Deleted, KEY, 1, 7),
            ],
        )],
        from: 2,
        ..History::default()
    }
}

#[test]
fn watches_show_everything_once_and_in_order() {
    right(&watched());
    let with = |change: fn(&mut Vec<Event>)| {
        let mut history = watched();
        change(&mut history.streams[0].events);
        history
    };
    wrong(&with(|e| e.swap(0, 1)), "after revision 4");
    wrong(&with(|e| e.insert(1, e[0].clone())), "after revision 3");
    // A bookmark with a revision that is too high, and one that is lower than the one before.
    wrong(&with(|e| e[2] = Event::Bookmark(7)), "after revision 7");
    wrong(&with(|e| e[2] = Event::Bookmark(3)), "after revision 4");
    // Changes that do not follow from the state before.
    wrong(&with(|e| e[0] = changed(Change::Modified, KEY, 1, 3)), "before it the value was None");
    wrong(&with(|e| e[3] = changed(Change::Deleted, KEY, 9, 7)), "before it the value was Some(1)");
    wrong(&with(|e| e[3] = changed(Change::Added, KEY, 9, 7)), "before it the value was Some(1)");
    wrong(&with(|e| e[3] = changed(Change::Modified, KEY, 2, 7)), "again at 7");
}

#[test]
fn another_watch_tells_what_one_skipped() {
    let mut history = watched();
    // The watch resumes at a revision that is older than the server, and gets no event twice.
    let mut resumed = stream(1, 3, history.streams[0].events[1..].to_vec());
    resumed.older_than_server = true;
    history.streams.push(resumed);
    right(&history);
    let events = &mut history.streams[1].events;
    let skipped = events.remove(0);
    wrong(&history, "was not shown");
    let events = &mut history.streams[1].events;
    events.insert(0, skipped);
    events.insert(0, changed(Change::Added, KEY, 1, 3));
    wrong(&history, "after revision 3");
    history.streams[1].events[0] = changed(Change::Added, "configmaps/c", 5, 4);
    wrong(&history, "to one watch");
    // A bookmark alone promises as much as an event.
    history.streams[1].events = vec![Event::Bookmark(6)];
    wrong(&history, "was not shown");
}

#[test]
fn answers_and_lists_agree_with_watches() {
    let mut history = watched();
    history.ops = vec![create(1, Answer::Wrote(3), 0, 1)];
    history.ops.push(op(Request::Delete { at: None }, Answer::Deleted, 8, 9));
    history.lists = vec![list(6, &[(KEY, state(1, 3)), ("configmaps/b", state(2, 4))], 2, 3)];
    right(&history);
    history.lists[0].found.pop();
    wrong(&history, "and watches up to there");
    history.lists.clear();
    history.ops[0].answer = Answer::Wrote(2);
    wrong(&history, "watches show it at 3");
    history.ops.push(Op { key: "configmaps/c".into(), ..create(8, Answer::Wrote(5), 2, 3) });
    wrong(&history, "no watch shows it");
}

#[test]
fn histories_survive_a_file() {
    let mut history = watched();
    history.ops =
        vec![create(1, Answer::Wrote(3), 0, 1), op(Request::Delete { at: Some(3) }, Answer::Unknown, 2, 3)];
    history.lists = vec![list(6, &[(KEY, state(1, 3))], 2, 3)];
    let text = serde_json::to_string(&history).expect("JSON");
    assert_eq!(serde_json::from_str::<History>(&text).expect("history"), history);
}
