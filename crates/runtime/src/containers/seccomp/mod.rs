//! System call filters: the runtime's default profile, profiles of the node, and compiling them to BPF.

mod compile;
mod default;
mod oci;
mod profile;
mod syscalls;

use std::io;

use super::spec::SeccompProfile;
pub use compile::Instruction;

/// Returns the filter program of a container; `None` if it is unconfined.
pub fn filter(profile: &SeccompProfile, bounding: u64) -> Result<Option<Vec<Instruction>>, String> {
    read(profile, bounding)?.map(|profile| compile::compile(&profile)).transpose()
}

/// Returns the profile in the OCI's form; `None` if the container is unconfined.
pub fn oci(profile: &SeccompProfile, bounding: u64) -> Result<Option<serde_json::Value>, String> {
    Ok(read(profile, bounding)?.map(|profile| oci::json(&profile)))
}

fn read(profile: &SeccompProfile, bounding: u64) -> Result<Option<profile::Profile>, String> {
    Ok(match profile {
        SeccompProfile::Unconfined => None,
        SeccompProfile::RuntimeDefault => Some(default::profile(bounding)),
        SeccompProfile::Localhost(text) => {
            Some(profile::parse(text, &profile::Circumstances::here(bounding))?)
        }
    })
}

/// Returns a filter that kills the process on any system call except those named.
pub fn only(names: &[&str]) -> Result<Vec<Instruction>, String> {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    let rules = vec![profile::Rule { names, action: profile::Action::Allow, args: Vec::new() }];
    compile::compile(&profile::Profile { default_action: profile::Action::KillProcess, rules })
}

/// Installs the filter on the calling thread; needs CAP_SYS_ADMIN or no_new_privs.
pub fn install(program: &[Instruction]) -> io::Result<()> {
    #[repr(C)]
    struct Program {
        length: u16,
        instructions: *const Instruction,
    }
    const SECCOMP_SET_MODE_FILTER: libc::c_int = 1;
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = Program { length, instructions: program.as_ptr() };
    // SAFETY: the program is valid for the call; the kernel copies it.
    let ret = unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
