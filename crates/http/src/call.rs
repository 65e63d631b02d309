//! Owns one call: what of its answer has come, what of that was told, and where the rest goes.

use std::io;
use std::mem;
use std::time::Duration;

use mio::{Registry, Token};

use crate::answer::Answer;
use crate::client::{Asked, CallId, News, Outcome, Want};
use crate::events::Border;
use crate::ids::ids_in;
use crate::limits::WHOLE_BYTES_MAX;
use crate::meter::Meter;
use crate::pass::Passing;

/// State of a call at its connection.
#[derive(Debug)]
enum Stage {
    /// The answer's head is awaited.
    Head,
    /// The head has come, and is held until something of the body has.
    Holding,
    /// The answer has begun; whether its next piece was asked for.
    Begun(bool),
    Passing(Passing),
    Over,
}

/// Why a call ended early.
#[derive(Debug)]
pub struct Failure {
    pub code: &'static str,
    pub reason: String,
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self { code: "EPROTO", reason }
    }
}

/// One request and its answer.
#[derive(Debug)]
pub struct Call {
    pub id: CallId,
    pub pool: u32,
    /// Request line and fields, and the body, until they are sent.
    pub request: (Vec<u8>, Vec<u8>),
    want: Want,
    stage: Stage,
    answer: Answer,
    border: Border,
    failure: Option<Failure>,
}

impl Call {
    pub fn new(asked: Asked) -> Self {
        let Asked { call: id, pool, head, body, has_body, want } = asked;
        Self {
            id,
            pool,
            request: (head, body),
            want,
            stage: Stage::Head,
            answer: Answer::new(has_body),
            border: Border::default(),
            failure: None,
        }
    }

    /// Whether bytes of the answer may come now.
    pub fn wants_more(&self) -> bool {
        self.failure.is_none()
            && match &self.stage {
                Stage::Head | Stage::Holding => true,
                Stage::Begun(is_asked) => *is_asked,
                Stage::Passing(passing) => passing.is_free(),
                Stage::Over => false,
            }
    }

    /// Whether all was told of it.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Whether its connection may take another request.
    pub fn keeps(&self) -> bool {
        self.failure.is_none() && self.answer.keeps()
    }

    /// Takes bytes of the answer, behind those in `input`, which keeps what is not read yet.
    pub fn receive(&mut self, bytes: &[u8], input: &mut Vec<u8>) -> Result<(), Failure> {
        self.answer.receive(bytes, input)?;
        if matches!(self.stage, Stage::Head) && self.answer.head().is_some() {
            self.stage = Stage::Holding;
        }
        match self.want {
            Want::Text(most) | Want::Ids(most) if self.answer.held().len() > most => {
                let reason = format!("an answer of more than {most} bytes");
                Err(Failure { code: "EMSGSIZE", reason })
            }
            _ => Ok(()),
        }
    }

    /// The connection was closed.
    pub fn end(&mut self) {
        if let Err(reason) = self.answer.end() {
            self.fail(lost(reason));
        }
    }

    pub fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Asks for the next piece.
    pub fn ask(&mut self) {
        if let Stage::Begun(is_asked) = &mut self.stage {
            *is_asked = true;
        }
    }

    /// Passes the rest on.
    pub fn pass(&mut self, passing: Passing) {
        if matches!(self.stage, Stage::Begun(_)) {
            self.stage = Stage::Passing(passing);
        }
    }

    /// Gives up what it passes to.
    pub fn drop_client(&mut self, registry: &Registry) {
        if let Stage::Passing(passing) = mem::replace(&mut self.stage, Stage::Over) {
            passing.close(registry);
        }
    }

    /// Ends the call where its client takes nothing for too long.
    pub fn check_stall(&mut self, stall: Duration, registry: &Registry, news: &mut Vec<News>) {
        let Stage::Passing(passing) = &self.stage else { return };
        if passing.is_stalled(stall) {
            self.passed(Outcome::Stalled, registry, news);
        }
    }

    /// Tells or passes on what can be.
    pub fn deliver(&mut self, registry: &Registry, token: Token, news: &mut Vec<News>) {
        match &mut self.stage {
            Stage::Head => self.deliver_failure(news),
            Stage::Holding => self.deliver_start(news),
            Stage::Begun(true) => self.deliver_piece(news),
            Stage::Begun(false) | Stage::Over => {}
            Stage::Passing(passing) => {
                let parts = (self.answer.held(), &mut self.border);
                let outcome = match pass(passing, parts, registry, token) {
                    Err(_) => Outcome::Gone,
                    Ok(true) if self.failure.is_some() => Outcome::Broken,
                    Ok(true) if self.answer.is_over() => Outcome::Whole,
                    Ok(_) => return,
                };
                self.passed(outcome, registry, news);
            }
        }
    }

    fn passed(&mut self, outcome: Outcome, registry: &Registry, news: &mut Vec<News>) {
        self.drop_client(registry);
        let is_at_border = self.border.is_at();
        news.push(News::Passed { call: self.id, outcome, is_at_border });
    }

    fn deliver_failure(&mut self, news: &mut Vec<News>) {
        let Some(Failure { code, reason }) = &mut self.failure else { return };
        let (code, reason) = (*code, mem::take(reason));
        self.stage = Stage::Over;
        news.push(News::Failed { call: self.id, code, reason });
    }

    fn deliver_start(&mut self, news: &mut Vec<News>) {
        let is_whole = self.answer.is_over();
        let is_failed = self.failure.is_some();
        if is_failed && (self.is_wanted_whole() || (!is_whole && self.answer.held().is_empty())) {
            return self.deliver_failure(news);
        }
        if !is_whole && !is_failed && !self.may_begin() {
            return;
        }
        let first = mem::take(self.answer.held());
        let status = self.answer.head().map_or(0, |head| head.status);
        let is_events = self.answer.head().is_some_and(|head| head.is_events);
        if self.is_wanted_whole() {
            self.stage = Stage::Over;
            return news.push(self.whole(status, &first));
        }
        self.border.pass(&first);
        let tokens = if is_whole && !is_events { tokens_of(&first) } else { None };
        self.stage = if is_whole { Stage::Over } else { Stage::Begun(false) };
        let fields = self.answer.take_fields();
        news.push(News::Began { call: self.id, status, fields, first, is_whole, tokens });
    }

    /// Whether nobody hears of the answer before its last byte.
    fn is_wanted_whole(&self) -> bool {
        matches!(self.want, Want::Text(_) | Want::Ids(_))
    }

    /// News of an answer that was wanted whole.
    fn whole(&self, status: u16, body: &[u8]) -> News {
        let call = self.id;
        if let Want::Ids(_) = self.want {
            return News::Ids { call, status, ids: ids_in(body).unwrap_or_default() };
        }
        News::Text { call, status, text: String::from_utf8_lossy(body).into_owned() }
    }

    /// Whether the first bytes may be told before the last ones have come. A short answer of known length is told once.
    fn may_begin(&mut self) -> bool {
        let held = self.answer.held().len() as u64;
        let is_short = self.answer.left().is_some_and(|left| left + held <= WHOLE_BYTES_MAX);
        let is_awaited = is_short || self.is_wanted_whole();
        !is_awaited && held > 0
    }

    fn deliver_piece(&mut self, news: &mut Vec<News>) {
        let is_last = self.answer.is_over();
        if self.answer.held().is_empty() && !is_last {
            return self.deliver_failure(news);
        }
        self.stage = if is_last { Stage::Over } else { Stage::Begun(false) };
        news.push(News::Piece { call: self.id, bytes: mem::take(self.answer.held()), is_last });
    }
}

/// Passes on what is held; returns whether the client has taken all.
fn pass(
    passing: &mut Passing,
    (held, border): (&mut Vec<u8>, &mut Border),
    registry: &Registry,
    token: Token,
) -> io::Result<bool> {
    if passing.is_free() && !held.is_empty() {
        border.pass(held);
        passing.put(held);
        held.clear();
    }
    passing.flush(registry, token)?;
    Ok(passing.is_free())
}

fn tokens_of(whole: &[u8]) -> Option<u64> {
    let mut meter = Meter::default();
    meter.pass(whole);
    meter.answer
}

fn lost(reason: &str) -> Failure {
    Failure { code: "ECONNRESET", reason: reason.into() }
}
