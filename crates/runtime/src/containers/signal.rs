//! Signal names in the spellings that images and pods use.

const NAMES: &[(&str, i32)] = &[
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("IOT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("STKFLT", libc::SIGSTKFLT),
    ("CHLD", libc::SIGCHLD),
    ("CLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("POLL", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];

const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// Parses a signal given as `SIGTERM`, `term`, `15`, `SIGRTMIN+3` or `RTMAX-1`.
pub fn signal_number(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return (1..=RTMAX).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some((_, number)) = NAMES.iter().find(|(known, _)| *known == name) {
        return Some(*number);
    }
    let number = if let Some(rest) = name.strip_prefix("RTMIN") {
        RTMIN.checked_add(offset(rest, '+')?)?
    } else {
        RTMAX.checked_sub(offset(name.strip_prefix("RTMAX")?, '-')?)?
    };
    (RTMIN..=RTMAX).contains(&number).then_some(number)
}

fn offset(text: &str, sign: char) -> Option<i32> {
    if text.is_empty() {
        return Some(0);
    }
    text.strip_prefix(sign)?.parse::<u8>().ok().map(i32::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for (text, want) in [
            ("SIGTERM", Some(15)),
            ("term", Some(15)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMAX-1", Some(63)),
            ("RTMIN", Some(34)),
            ("RTMIN+99", None),
            ("0", None),
            ("SIGNOPE", None),
            ("", None),
        ] {
            assert_eq!(signal_number(text), want, "{text}");
        }
    }
}
