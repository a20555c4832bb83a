//! Executing the program again in this very process, as the node's next incarnation (`docs/decisions/0018-a-fenced-node-starts-again.md`).
//!
//! Nobody may be there who would start it once more if that fails, so a start of this kind to which the machine gives no thread or no
//! memory is tried again for a while: what took them may be what had the node declared lost.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::fatal::Fatal;

/// Tells a start which try of an incarnation it is, from 1. Not set: somebody else has started the program.
const TRY: &str = "_KERA_NEXT_INCARNATION_TRY";
/// Tries of one incarnation.
const TRIES_MAX: u32 = 60;
/// Between two of them.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Which try of an incarnation this start is, if the node has started itself.
pub(crate) fn this_try() -> Option<u32> {
    std::env::var(TRY).ok()?.parse().ok()
}

/// The next try, if one may help: the node has started itself, for want of something that may be there in a moment.
pub(crate) fn next_try(this: Option<u32>, error: &Fatal) -> Option<u32> {
    let Fatal::Resources { error, .. } = error else { return None };
    let may_pass = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory);
    this.filter(|this| may_pass && *this < TRIES_MAX).map(|this| this + 1)
}

/// Executes the program with the same words. Returns only if that cannot be done, with why.
pub(crate) fn execute(this_try: u32) -> io::Error {
    go_as_started();
    std::process::Command::new(program()).args(std::env::args_os().skip(1)).env(TRY, this_try.to_string()).exec()
}

/// Where this program is. A package that replaces its file removes the one that runs, and what the system calls that then is the name of none; what runs can be executed all the same.
/// Not the new file, which may be of another version: when a node goes on to that is for whoever runs it to say.
fn program() -> PathBuf {
    let named = std::env::current_exe().ok().filter(|path| path.exists());
    named.unwrap_or_else(|| "/proc/self/exe".into())
}

/// Gives this thread the priority that the program was started with: what it executes has it as a whole.
fn go_as_started() {
    let (this, first) = (rustix::thread::gettid(), rustix::process::getpid());
    let nice = rustix::process::getpriority_process(Some(first)).unwrap_or(0);
    let _ = rustix::process::setpriority_process(Some(this), nice);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_that_started_itself_tries_again_and_only_what_may_pass() {
        let lacks = |kind: io::ErrorKind| Fatal::Resources { what: "a thread", error: kind.into() };
        let no_thread = lacks(io::ErrorKind::WouldBlock);
        assert_eq!(next_try(Some(1), &no_thread), Some(2));
        assert_eq!(next_try(Some(1), &lacks(io::ErrorKind::OutOfMemory)), Some(2));
        assert_eq!(next_try(Some(TRIES_MAX), &no_thread), None);
        assert_eq!(next_try(None, &no_thread), None);
        assert_eq!(next_try(Some(1), &lacks(io::ErrorKind::PermissionDenied)), None);
        assert_eq!(next_try(Some(1), &Fatal::Data { message: "damaged".into() }), None);
    }
}
