//! Owns the tokens of a lane server: each opens one session, and each of its lanes once, for a short time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::session::Session;
use crate::error::{Error, Result};
use crate::lane::frame::TOKEN_BYTES;
use crate::limits::{LANE_TOKENS_MAX, LANES_MAX};

/// Secret by which a client's lanes are recognised.
pub type Token = [u8; TOKEN_BYTES];

/// Rights of a token, and the account it was issued to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    /// Whether the client may store.
    pub may_store: bool,
    /// Account of the client's credential; 0: none in particular.
    pub account: u16,
}

/// Issued tokens, the oldest first.
#[derive(Default)]
pub struct Tokens {
    entries: HashMap<Token, Entry>,
    order: VecDeque<Token>,
}

struct Entry {
    until: Instant,
    right: Right,
    /// Set once the first lane has come.
    session: Option<Arc<Session>>,
    lanes: u16,
    taken: u32,
}

impl Tokens {
    /// Makes `token` valid.
    pub fn admit(&mut self, token: Token, right: Right, within: Duration) {
        self.forget_old();
        while self.order.len() >= LANE_TOKENS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.entries.remove(&oldest);
            }
        }
        let until = Instant::now() + within;
        self.entries.insert(token, Entry { until, right, session: None, lanes: 0, taken: 0 });
        self.order.push_back(token);
    }

    /// Returns the session of lane `lane` of `lanes`; `open` creates it for the first one.
    ///
    /// # Errors
    /// `LANE_FAILED`: the token is unknown or expired, or that lane has come before.
    pub fn take(
        &mut self,
        token: &Token,
        (lane, lanes): (u32, u16),
        open: impl FnOnce(Right) -> Arc<Session>,
    ) -> Result<Arc<Session>> {
        self.forget_old();
        let entry = self
            .entries
            .get_mut(token)
            .ok_or_else(|| Error::lane_failed("the token is unknown, used or expired"))?;
        let is_possible = (1..=LANES_MAX).contains(&usize::from(lanes)) && lane < u32::from(lanes);
        let is_same = entry.session.is_none() || entry.lanes == lanes;
        if !is_possible || !is_same {
            return Err(Error::lane_failed(format!("lane {lane} of {lanes}: 1 to {LANES_MAX}")));
        }
        if entry.taken & (1 << lane) != 0 {
            return Err(Error::lane_failed(format!("lane {lane} of this token has come before")));
        }
        entry.taken |= 1 << lane;
        entry.lanes = lanes;
        let session = Arc::clone(entry.session.get_or_insert_with(|| open(entry.right)));
        if entry.taken.count_ones() == u32::from(lanes) {
            self.entries.remove(token);
            self.order.retain(|known| known != token);
        }
        Ok(session)
    }

    /// Revokes all tokens of an account.
    pub fn expel(&mut self, account: u16) {
        self.entries.retain(|_, entry| entry.right.account != account);
        self.order.retain(|token| self.entries.contains_key(token));
    }

    fn forget_old(&mut self) {
        let now = Instant::now();
        while let Some(oldest) = self.order.front() {
            match self.entries.get(oldest) {
                Some(entry) if entry.until > now => break,
                _ => {
                    self.entries.remove(oldest);
                    self.order.pop_front();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_are_gone_take_no_place_from_valid_ones() {
        let token = |number: usize| {
            let mut token = [0; TOKEN_BYTES];
            token[..8].copy_from_slice(&number.to_le_bytes());
            token
        };
        let mut tokens = Tokens::default();
        let mut admit = |number: usize, account: u16| {
            tokens.admit(
                token(number),
                Right { may_store: true, account },
                Duration::from_secs(60),
            );
        };
        admit(0, 1);
        (1..LANE_TOKENS_MAX).for_each(|number| admit(number, 2));
        tokens.expel(2);
        tokens.admit(
            token(LANE_TOKENS_MAX),
            Right { may_store: true, account: 1 },
            Duration::from_secs(60),
        );
        assert!(tokens.entries.contains_key(&token(0)));
        assert_eq!(tokens.order.len(), 2);
    }
}
