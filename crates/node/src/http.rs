//! Owns the bindings of the gateway's HTTP client: requests by number, one call into JavaScript per news.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use napi::bindgen_prelude::{
    Buffer, FnArgs, Function, Latin1String, ToNapiValue, TypeName, Uint32Array,
};
use napi::threadsafe_function::{
    ThreadsafeCallContext, ThreadsafeFunction, ThreadsafeFunctionCallMode,
};
use napi::{Status, ValueType, sys};
use napi_derive::napi;
use tierkv_core::error::Error;
use tierkv_http::{Address, Asked, Client, Meter, News, Outcome, Times, Want, ids_in};

use crate::ffi::{number, run};

/// Bytes of a call: text, each character a byte; or a buffer.
pub enum Bytes {
    Text(Vec<u8>),
    Utf8(String),
    Buffer(Vec<u8>),
    Ids(Vec<u32>),
}

impl TypeName for Bytes {
    fn type_name() -> &'static str {
        "string | Buffer | Uint32Array"
    }

    fn value_type() -> ValueType {
        ValueType::Unknown
    }
}

impl ToNapiValue for Bytes {
    unsafe fn to_napi_value(env: sys::napi_env, val: Self) -> napi::Result<sys::napi_value> {
        match val {
            Self::Text(bytes) => {
                let mut made = std::ptr::null_mut();
                let length = bytes.len().cast_signed();
                // SAFETY: `env` is JavaScript's own, in its thread; the bytes live until the call has copied them.
                let status = unsafe {
                    sys::napi_create_string_latin1(
                        env,
                        bytes.as_ptr().cast(),
                        length,
                        &raw mut made,
                    )
                };
                if status == sys::Status::napi_ok {
                    return Ok(made);
                }
                Err(napi::Error::new(Status::from(status), "a text cannot be made".to_owned()))
            }
            // SAFETY: as the caller vouches.
            Self::Utf8(text) => unsafe { ToNapiValue::to_napi_value(env, text) },
            // SAFETY: as the caller vouches.
            Self::Buffer(bytes) => unsafe { ToNapiValue::to_napi_value(env, Buffer::from(bytes)) },
            // SAFETY: as the caller vouches.
            Self::Ids(ids) => unsafe { ToNapiValue::to_napi_value(env, Uint32Array::from(ids)) },
        }
    }
}

/// Call, kind, status, text, body, and a number.
pub type Told = FnArgs<(u32, u32, u32, Bytes, Bytes, f64)>;

/// Kinds of news, as `src/gateway/engines/core-calls.ts` reads them.
const BEGUN: u32 = 0;
const WHOLE: u32 = 1;
const PIECE: u32 = 2;
const LAST: u32 = 3;
const PASSED: u32 = 4;
const TEXT: u32 = 5;
const IDS: u32 = 6;
const FAILED: u32 = 7;

/// Forms in which an answer is wanted, as the same file numbers them; any other: as it comes.
const AS_TEXT: u32 = 1;
const AS_IDS: u32 = 2;

fn told(news: News) -> Told {
    let none = || Bytes::Text(Vec::new());
    let (call, kind, status, text, body, count) = match news {
        News::Began { call, status, fields, first, is_whole, tokens } => {
            let kind = if is_whole { WHOLE } else { BEGUN };
            let tokens = tokens.map_or(-1.0, number);
            (call, kind, status.into(), Bytes::Text(fields), Bytes::Text(first), tokens)
        }
        News::Text { call, status, text } => {
            (call, TEXT, status.into(), none(), Bytes::Utf8(text), 0.0)
        }
        News::Ids { call, status, ids } => (call, IDS, status.into(), none(), Bytes::Ids(ids), 0.0),
        News::Piece { call, bytes, is_last } => {
            (call, if is_last { LAST } else { PIECE }, 0, none(), Bytes::Buffer(bytes), 0.0)
        }
        News::Passed { call, outcome, is_at_border } => {
            let outcome = match outcome {
                Outcome::Whole => 0,
                Outcome::Gone => 1,
                Outcome::Stalled => 2,
                Outcome::Broken => 3,
            };
            (call, PASSED, outcome, none(), none(), f64::from(u8::from(is_at_border)))
        }
        News::Failed { call, code, reason } => {
            (call, FAILED, 0, Bytes::Utf8(code.into()), Bytes::Utf8(reason), 0.0)
        }
    };
    (call, kind, status, text, body, count).into()
}

/// Returns the token ids in an engine's answer; empty: it has none by which a prompt's blocks are known.
#[napi(js_name = "idsIn")]
#[must_use]
pub fn ids_of(answer: &[u8]) -> Uint32Array {
    ids_in(answer).unwrap_or_default().into()
}

/// Counts an answer's tokens as it passes.
#[napi]
#[derive(Default)]
pub struct AnswerMeter(Arc<Mutex<Meter>>);

#[napi]
impl AnswerMeter {
    #[napi(constructor)]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears of bytes that pass.
    #[napi]
    pub fn pass(&self, bytes: &[u8]) {
        self.meter().pass(bytes);
    }

    /// Tokens of prompt and answer, as last reported; null: not reported.
    #[napi(getter, ts_return_type = "number | null")]
    #[must_use]
    pub fn total(&self) -> Option<f64> {
        self.meter().total().map(number)
    }

    /// Tokens of the answer, as last reported; null: not reported.
    #[napi(getter, ts_return_type = "number | null")]
    #[must_use]
    pub fn answer(&self) -> Option<f64> {
        self.meter().answer.map(number)
    }

    /// Events so far.
    #[napi(getter)]
    #[must_use]
    pub fn events(&self) -> f64 {
        number(self.meter().events)
    }
}

/// How long something may take, in ms.
#[napi(object)]
#[expect(clippy::struct_field_names, reason = "each carries its unit")]
pub struct HttpTimes {
    pub connect_ms: u32,
    pub kept_idle_ms: u32,
    pub stall_ms: u32,
}

/// A thread with connections to engines.
#[napi]
pub struct HttpCore {
    client: Client,
    pools: Mutex<HashMap<u32, Arc<AtomicU64>>>,
    last: AtomicU32,
}

#[napi]
impl HttpCore {
    /// Starts the thread. `times`: ms for making a connection, for keeping one without a request, and for a client that takes
    /// nothing. `onNews` is called with each news: call, kind, status, text, body, and a number.
    #[napi(
        constructor,
        ts_args_type = "times: HttpTimes, onNews: (call: number, kind: number, status: number, text: string, body: string | Buffer | Uint32Array, count: number) => void"
    )]
    pub fn new(times: HttpTimes, on_news: Function<'_, Told, ()>) -> napi::Result<Self> {
        let tell: ThreadsafeFunction<News, (), Told, Status, false, true> = on_news
            .build_threadsafe_function::<News>()
            .weak::<true>()
            .build_callback(|context: ThreadsafeCallContext<News>| Ok(told(context.value)))?;
        run(|| {
            let ms = |ms: u32| Duration::from_millis(ms.into());
            let HttpTimes { connect_ms, kept_idle_ms, stall_ms } = times;
            let times =
                Times { connect: ms(connect_ms), kept_idle: ms(kept_idle_ms), stall: ms(stall_ms) };
            let client = Client::start(times, move |all| {
                for news in all {
                    // A call fails only if JavaScript has gone, and then no code waits for it.
                    tell.call(news, ThreadsafeFunctionCallMode::NonBlocking);
                }
            });
            let client =
                client.map_err(|error| Error::bad_argument(format!("a thread: {error}")))?;
            Ok(Self { client, pools: Mutex::default(), last: AtomicU32::new(0) })
        })
    }

    fn number(&self) -> u32 {
        self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    fn pools(&self) -> MutexGuard<'_, HashMap<u32, Arc<AtomicU64>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for connections to an engine, `host:port` or `unix:/path`, at most so many; returns their number.
    #[napi]
    pub fn open(&self, address: String, most: u32) -> napi::Result<u32> {
        run(|| {
            let address = Address::parse(&address).map_err(Error::bad_argument)?;
            let pool = self.number();
            let signs = self.client.open(pool, address, most as usize);
            self.pools().insert(pool, signs);
            Ok(pool)
        })
    }

    /// Ends an engine's connections, and fails its calls; idempotent.
    #[napi]
    pub fn close(&self, pool: u32) {
        self.pools().remove(&pool);
        self.client.close(pool);
    }

    /// Pieces of answers that came from an engine.
    #[napi]
    #[must_use]
    pub fn signs(&self, pool: u32) -> f64 {
        self.pools().get(&pool).map_or(0.0, |signs| number(signs.load(Ordering::Relaxed)))
    }

    /// Sends a request, whose head is a text with a character for each byte; returns its number. `form`: the answer is wanted
    /// as it comes (0), as one text (1) or as token ids (2), the latter two of at most `most` bytes. The thread hears of it by
    /// `wake`.
    #[napi]
    pub fn request(
        &self,
        pool: u32,
        head: Latin1String,
        body: Option<&[u8]>,
        has_body: bool,
        form: u32,
        most: u32,
    ) -> u32 {
        let call = self.number();
        let want = match form {
            AS_TEXT => Want::Text(most as usize),
            AS_IDS => Want::Ids(most as usize),
            _ => Want::Pieces,
        };
        self.client.request(Asked {
            call,
            pool,
            head: head.to_vec(),
            body: body.map_or_else(Vec::new, <[u8]>::to_vec),
            has_body,
            want,
        });
        call
    }

    /// Asks for the next piece of an answer.
    #[napi]
    pub fn more(&self, call: u32) {
        self.client.more(call);
    }

    /// Passes the rest of an answer to a client's socket, in chunks or as it is. The descriptor stays the caller's, and
    /// must be open during this call. `meter` counts what passes.
    #[napi]
    pub fn pass(
        &self,
        call: u32,
        client: i32,
        is_chunked: bool,
        meter: Option<&AnswerMeter>,
    ) -> napi::Result<()> {
        run(|| {
            let client = copy_of(client)
                .map_err(|error| Error::bad_argument(format!("descriptor {client}: {error}")))?;
            let meter = meter.map(|meter| Arc::clone(&meter.0));
            self.client.pass(call, client, is_chunked, meter);
            Ok(())
        })
    }

    /// Wakes the thread for the requests, pieces and passings asked for since the last time.
    #[napi]
    pub fn wake(&self) {
        self.client.wake();
    }

    /// Ends a call, whatever it does; idempotent.
    #[napi]
    pub fn abort(&self, call: u32) {
        self.client.abort(call);
    }
}

fn copy_of(descriptor: i32) -> std::io::Result<std::os::fd::OwnedFd> {
    if descriptor < 0 {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is not -1, and the caller keeps it open during the call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned()
}
