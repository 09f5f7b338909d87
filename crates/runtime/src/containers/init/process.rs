//! The last steps before exec: limits, working directory, user, capabilities, seccomp.

use std::ffi::CString;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::root::Root;
use super::working_folder::WorkingFolder;
use super::{Failure, JoinedPids, sibling, terminal};
use crate::containers::capabilities::{self, CapabilitySets};
use crate::containers::exec_path::{self, DEFAULT_PATH, variable};
use crate::containers::seccomp::{self, Instruction};
use crate::containers::spec::{ContainerSpec, Rlimit, User};
use crate::containers::sys::{self, errno_text};
use crate::containers::user;

/// How the program runs, as a container's first process or exec'd into it.
pub struct Process {
    pub args: Vec<String>,
    pub env: Vec<String>,
    pub cwd: String,
    pub user: User,
    pub tty: bool,
    pub capabilities: CapabilitySets,
    pub no_new_privileges: bool,
    pub filter: Option<Vec<Instruction>>,
    /// The name of an AppArmor profile.
    pub app_armor: Option<String>,
    pub rlimits: Vec<Rlimit>,
    pub oom_score_adj: Option<i32>,
    pub hostname: String,
}

/// How the process executes the program.
pub struct Entry<'a> {
    pub joined: Option<JoinedPids<'a>>,
    pub report: BorrowedFd<'a>,
}

impl Process {
    /// Returns the first process of a container; fails on a seccomp profile that cannot be enforced.
    pub fn of(spec: &ContainerSpec, hostname: &str) -> Result<Self, String> {
        let capabilities = capabilities::sets_of(spec);
        // A privileged container is unconfined, as in containerd.
        let filter =
            if spec.privileged { None } else { seccomp::filter(&spec.seccomp, capabilities.bounding)? };
        Ok(Self {
            args: spec.args.clone(),
            env: spec.env.clone(),
            cwd: if spec.cwd.is_empty() { "/".to_owned() } else { spec.cwd.clone() },
            user: spec.user.clone(),
            tty: spec.tty,
            capabilities,
            no_new_privileges: spec.no_new_privileges,
            filter,
            app_armor: spec.app_armor.clone(),
            rlimits: spec.rlimits.clone(),
            oom_score_adj: spec.oom_score_adj,
            hostname: hostname.to_owned(),
        })
    }

    /// Sets the OOM score. Lowering it needs CAP_SYS_RESOURCE, which some machines withhold: then the score
    /// stays unchanged.
    pub fn set_oom_score_adj(&self) -> Result<(), Failure> {
        let value = self.oom_score_adj.unwrap_or(0).clamp(-1000, 1000);
        match fs::write("/proc/self/oom_score_adj", value.to_string()) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                Err(Failure::step("set oom_score_adj")(error))
            }
            _ => Ok(()),
        }
    }

    /// Sets the resource limits. Raising one needs the host's CAP_SYS_RESOURCE.
    pub fn set_rlimits(&self) -> Result<(), Failure> {
        self.rlimits.iter().try_for_each(set_rlimit)
    }

    /// Executes the program; returns only if that fails, with the reason.
    ///
    /// The working directory, the account file and the program are looked up with the rights that the program
    /// will have. Steps that need more rights come after that, because a filter that allows few system calls
    /// must not fail the steps before it.
    pub fn exec(&self, root: &Root, entry: &Entry<'_>) -> Result<std::convert::Infallible, Failure> {
        // A server and its shims may run without huge pages; the container must not inherit that.
        let _ = sys::prctl(libc::PR_SET_THP_DISABLE, 0, 0);
        let folder = WorkingFolder::prepare(root, &self.cwd);
        self.become_user()?;
        folder.enter(root)?;
        let env = self.environment();
        let path = exec_path::look_up(&self.args[0], variable(&env, "PATH").unwrap_or(DEFAULT_PATH))
            .map_err(|error| Failure { message: error.message, exit_code: error.exit_code })?;
        let (file, argv, envp) = self.exec_strings(&path, &env)?;
        let argv = pointers(&argv);
        let envp = pointers(&envp);
        sys::cloexec_from(3).map_err(Failure::step("close inherited descriptors"))?;
        // SAFETY: plain system call.
        unsafe { libc::umask(0o022) };
        match entry.joined {
            Some(joined) => self.join_and_confine(joined, entry.report)?,
            None => {
                self.begin_session()?;
                self.give_up_privileges()?;
                self.confine()?;
            }
        }
        // SAFETY: NULL-terminated arrays of NUL-terminated strings that outlive the call.
        unsafe { libc::execve(file.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        let error = std::io::Error::last_os_error();
        let exit_code = if error.raw_os_error() == Some(libc::ENOENT) { 127 } else { 126 };
        Err(Failure { message: format!("exec {}: {}", path.display(), errno_text(&error)), exit_code })
    }

    /// Returns the environment with the variables that containerd and runc add.
    fn environment(&self) -> Vec<String> {
        let mut env = self.env.clone();
        let mut add = |key: &str, value: &dyn Fn() -> String| {
            if variable(&env, key).is_none() {
                env.push(format!("{key}={}", value()));
            }
        };
        add("PATH", &|| DEFAULT_PATH.to_owned());
        add("HOSTNAME", &|| self.hostname.clone());
        add("HOME", &|| user::home_of(&user::read_in_root(Path::new("/"), "etc/passwd"), self.user.uid));
        if self.tty {
            add("TERM", &|| "xterm".to_owned());
        }
        env
    }

    fn install_filter(&self) -> Result<(), Failure> {
        match &self.filter {
            Some(filter) => seccomp::install(filter).map_err(Failure::step("load seccomp filter")),
            None => Ok(()),
        }
    }

    /// Sets the ids and limits the effective capabilities to the program's; the others stay permitted.
    fn become_user(&self) -> Result<(), Failure> {
        let user = &self.user;
        capabilities::drop_bounding(&self.capabilities)
            .map_err(Failure::step("drop capabilities from the bounding set"))?;
        sys::prctl(libc::PR_SET_KEEPCAPS, 1, 0).map_err(Failure::step("keep capabilities"))?;
        // SAFETY: the list is valid for its length.
        sys::check(unsafe { libc::setgroups(user.additional_gids.len(), user.additional_gids.as_ptr()) })
            .map_err(Failure::step("setgroups"))?;
        // SAFETY: plain system calls.
        unsafe {
            sys::check(libc::setresgid(user.gid, user.gid, user.gid)).map_err(Failure::step("setgid"))?;
            sys::check(libc::setresuid(user.uid, user.uid, user.uid)).map_err(Failure::step("setuid"))?;
        }
        // A change of ids makes a process dumpable again, depending on the machine's fs.suid_dumpable.
        sys::make_undumpable().map_err(Failure::step("hide from other processes"))?;
        self.capabilities.act(user.uid).map_err(Failure::step("set capabilities"))
    }

    /// Continues in a sibling that is created inside the joined pid namespace. The sibling has no more rights
    /// there than the program, because processes of the namespace may be able to take it over.
    ///
    /// One step may need more rights: without no_new_privs, a filter is installed before the capabilities are
    /// dropped, and every later system call must pass it. If no process can trace the sibling, the filter is
    /// installed last, so that only execve must pass it.
    fn join_and_confine(&self, joined: JoinedPids<'_>, report: BorrowedFd<'_>) -> Result<(), Failure> {
        let filter_comes_last = self.filter.is_some() && !self.no_new_privileges && !joined.traced;
        if !filter_comes_last {
            self.give_up_privileges()?;
        }
        sibling::go_on(0, report)?;
        self.begin_session()?;
        if filter_comes_last {
            self.give_up_privileges()?;
        }
        self.confine()
    }

    fn begin_session(&self) -> Result<(), Failure> {
        sys::setsid().map_err(Failure::step("setsid"))?;
        if self.tty { terminal::take_control() } else { Ok(()) }
    }

    /// Drops all capabilities except the program's. Without no_new_privs, installs the filter first.
    fn give_up_privileges(&self) -> Result<(), Failure> {
        if self.no_new_privileges {
            sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map_err(Failure::step("set no_new_privs"))?;
        } else {
            // Without no_new_privs a filter needs CAP_SYS_ADMIN, so it is installed before that is dropped.
            capabilities::act_with_all().map_err(Failure::step("set capabilities"))?;
            self.install_filter()?;
        }
        self.capabilities.apply(self.user.uid).map_err(Failure::step("set capabilities"))?;
        sys::prctl(libc::PR_SET_KEEPCAPS, 0, 0).map_err(Failure::step("drop kept capabilities"))?;
        Ok(())
    }

    /// Performs the last steps: binds the process to the shim's life, and installs the filter if that was not
    /// necessary before.
    fn confine(&self) -> Result<(), Failure> {
        // Set this late because every change of credentials and every clone clears it.
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)
            .map_err(Failure::step("set the parent death signal"))?;
        if self.no_new_privileges { self.install_filter() } else { Ok(()) }
    }

    fn exec_strings(
        &self,
        path: &Path,
        env: &[String],
    ) -> Result<(CString, Vec<CString>, Vec<CString>), Failure> {
        let list = |items: &[String]| {
            items.iter().map(|item| sys::cstring(item.as_str())).collect::<std::io::Result<Vec<_>>>()
        };
        let all = || Ok((sys::path_cstring(path)?, list(&self.args)?, list(env)?));
        all().map_err(Failure::step("arguments"))
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

fn rlimit_resource(kind: &str) -> Option<libc::__rlimit_resource_t> {
    Some(match kind {
        "RLIMIT_AS" => libc::RLIMIT_AS,
        "RLIMIT_CORE" => libc::RLIMIT_CORE,
        "RLIMIT_CPU" => libc::RLIMIT_CPU,
        "RLIMIT_DATA" => libc::RLIMIT_DATA,
        "RLIMIT_FSIZE" => libc::RLIMIT_FSIZE,
        "RLIMIT_LOCKS" => libc::RLIMIT_LOCKS,
        "RLIMIT_MEMLOCK" => libc::RLIMIT_MEMLOCK,
        "RLIMIT_MSGQUEUE" => libc::RLIMIT_MSGQUEUE,
        "RLIMIT_NICE" => libc::RLIMIT_NICE,
        "RLIMIT_NOFILE" => libc::RLIMIT_NOFILE,
        "RLIMIT_NPROC" => libc::RLIMIT_NPROC,
        "RLIMIT_RSS" => libc::RLIMIT_RSS,
        "RLIMIT_RTPRIO" => libc::RLIMIT_RTPRIO,
        "RLIMIT_RTTIME" => libc::RLIMIT_RTTIME,
        "RLIMIT_SIGPENDING" => libc::RLIMIT_SIGPENDING,
        "RLIMIT_STACK" => libc::RLIMIT_STACK,
        _ => return None,
    })
}

/// Sets a resource limit. If the machine does not permit raising a hard limit, the highest possible one is set.
fn set_rlimit(limit: &Rlimit) -> Result<(), Failure> {
    let fail = |error| Failure::step(format!("set {}", limit.kind))(error);
    let resource = rlimit_resource(&limit.kind)
        .ok_or_else(|| Failure { message: format!("unknown rlimit {:?}", limit.kind), exit_code: 128 })?;
    let wanted = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
    // SAFETY: the structures are valid for the calls.
    unsafe {
        if libc::setrlimit(resource, &raw const wanted) == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EPERM) {
            return Err(fail(error));
        }
        let mut now: libc::rlimit = std::mem::zeroed();
        sys::check(libc::getrlimit(resource, &raw mut now)).map_err(fail)?;
        let hard = wanted.rlim_max.min(now.rlim_max);
        let possible = libc::rlimit { rlim_cur: wanted.rlim_cur.min(hard), rlim_max: hard };
        sys::check(libc::setrlimit(resource, &raw const possible)).map(drop).map_err(fail)
    }
}
