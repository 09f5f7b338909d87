//! What a plugin answers at an extension point.

use std::borrow::Cow;

/// The kind of answer. Numbers and names as upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    Success,
    /// The plugin itself failed.
    Error,
    /// Not now; a change in the cluster or a preemption may help.
    Unschedulable,
    /// Not now, and removing pods from the node would not help.
    UnschedulableAndUnresolvable,
    /// Permit: the pod waits.
    Wait,
    /// The plugin has nothing to do for this pod at the coupled points.
    Skip,
    /// PreEnqueue and Reserve: wait for something outside the scheduler.
    Pending,
}

/// A code with reasons for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub code: Code,
    pub reasons: Vec<Cow<'static, str>>,
}

impl Status {
    pub const SUCCESS: Self = Self { code: Code::Success, reasons: Vec::new() };
    pub const SKIP: Self = Self { code: Code::Skip, reasons: Vec::new() };

    pub fn new(code: Code, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { code, reasons: vec![reason.into()] }
    }

    pub fn unschedulable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Unschedulable, reason)
    }

    pub fn unresolvable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::UnschedulableAndUnresolvable, reason)
    }

    pub fn wait(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Wait, reason)
    }

    pub fn error(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Error, reason)
    }

    pub fn is_success(&self) -> bool {
        self.code == Code::Success
    }

    pub fn is_skip(&self) -> bool {
        self.code == Code::Skip
    }

    /// Turned down, as against failed.
    pub fn is_rejected(&self) -> bool {
        matches!(self.code, Code::Unschedulable | Code::UnschedulableAndUnresolvable | Code::Pending)
    }

    pub fn message(&self) -> String {
        self.reasons.join(", ")
    }
}
