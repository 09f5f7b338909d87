//! The result of a plugin at an extension point.

use std::borrow::Cow;

/// The kind of result. Numbers and names are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    Success,
    /// The plugin failed.
    Error,
    /// Unschedulable at present; a change in the cluster or a preemption may help.
    Unschedulable,
    /// Unschedulable at present, and removing pods from the node would not help.
    UnschedulableAndUnresolvable,
    /// Permit: the pod must wait.
    Wait,
    /// The plugin has nothing to do for this pod, in later related extension points either.
    Skip,
    /// PreEnqueue and Reserve: the pod waits for something outside the scheduler.
    Pending,
}

/// A code with messages for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub code: Code,
    pub reasons: Vec<Cow<'static, str>>,
}

impl Status {
    pub const SUCCESS: Self = Self { code: Code::Success, reasons: Vec::new() };
    pub const SKIP: Self = Self { code: Code::Skip, reasons: Vec::new() };

    /// Returns a status with this code and one reason.
    pub fn new(code: Code, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { code, reasons: vec![reason.into()] }
    }

    /// Returns an unschedulable status: a preemption may help.
    pub fn unschedulable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Unschedulable, reason)
    }

    /// Returns an unschedulable status that preemption does not help with.
    pub fn unresolvable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::UnschedulableAndUnresolvable, reason)
    }

    /// Returns the status of a Permit plugin that makes the pod wait.
    pub fn wait(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Wait, reason)
    }

    /// Returns the status of a plugin that failed.
    pub fn error(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Error, reason)
    }

    pub fn is_success(&self) -> bool {
        self.code == Code::Success
    }

    pub fn is_skip(&self) -> bool {
        self.code == Code::Skip
    }

    /// Returns whether the pod was rejected, as opposed to a failure of the plugin.
    pub fn is_rejected(&self) -> bool {
        matches!(self.code, Code::Unschedulable | Code::UnschedulableAndUnresolvable | Code::Pending)
    }

    /// The reasons, joined by commas.
    pub fn message(&self) -> String {
        self.reasons.join(", ")
    }
}
