//! How a session learns that something it waits for has moved.
//!
//! Lanes, sinks, the arena and applications call back on their own threads with the token the session gave. The call only
//! notes the token and wakes the session's I/O thread; there the session looks at exactly what moved. So a session that
//! waits for a thousand lanes does nothing for those that stay quiet.

use std::sync::Arc;

use kera_log::Observer;
use kera_rpc::SessionWaker;
use parking_lot::Mutex;

/// What a token stands for: the upper byte says, the rest is a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    /// A slot of the session's [`crate::lanes::LaneTable`].
    Lane(u32),
    /// The arena has got a block back.
    Space,
    /// A sink has made a ticket durable.
    Sink,
    /// The waiter of this number shall look again.
    Waiter(u32),
}

impl Token {
    pub(crate) fn to_u64(self) -> u64 {
        match self {
            Token::Lane(slot) => u64::from(slot),
            Token::Space => 1 << 56,
            Token::Sink => 2 << 56,
            Token::Waiter(number) => 3 << 56 | u64::from(number),
        }
    }

    pub(crate) fn from_u64(token: u64) -> Token {
        match token >> 56 {
            0 => Token::Lane(token as u32),
            1 => Token::Space,
            2 => Token::Sink,
            _ => Token::Waiter(token as u32),
        }
    }
}

/// The mailbox of one session. Whoever is waited for keeps it weakly: it dies with the session.
pub(crate) struct Signals {
    ready: Mutex<Vec<u64>>,
    waker: SessionWaker,
}

impl Signals {
    pub(crate) fn new(waker: SessionWaker) -> Arc<Signals> {
        Arc::new(Signals { ready: Mutex::new(Vec::new()), waker })
    }

    /// Moves what has come in into `into`, which is emptied first.
    pub(crate) fn take(&self, into: &mut Vec<u64>) {
        into.clear();
        std::mem::swap(&mut *self.ready.lock(), into);
    }
}

impl Observer for Signals {
    fn advanced(&self, token: u64) {
        let first = {
            let mut ready = self.ready.lock();
            ready.push(token);
            ready.len() == 1
        };
        if first {
            self.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_being_numbers() {
        for token in [Token::Lane(0), Token::Lane(u32::MAX), Token::Space, Token::Sink, Token::Waiter(7)] {
            assert_eq!(Token::from_u64(token.to_u64()), token);
        }
    }

    #[test]
    fn wakes_come_together_and_are_taken_once() {
        let waker = SessionWaker::detached();
        let signals = Signals::new(waker.clone());
        signals.advanced(3);
        signals.advanced(9);
        assert!(waker.take());
        let mut taken = vec![1];
        signals.take(&mut taken);
        assert_eq!(taken, [3, 9]);
        signals.take(&mut taken);
        assert!(taken.is_empty());
    }
}
