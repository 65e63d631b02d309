//! Owns the credentials for S3: found along the usual chain of AWS's own tools, renewed before they expire.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use jiff::Timestamp;
use rusty_s3::Credentials;
use ureq::{Agent, Body, http::Response};

use super::profile::Profile;
use crate::limits::{
    CREDENTIALS_FILE_MS, CREDENTIALS_MARGIN_MS, CREDENTIALS_REQUEST_MS, CREDENTIALS_RETRY_MS,
};

/// Reads a variable of the environment.
pub type Vars = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Containers of Amazon's services find their credentials there.
const CONTAINER_HOST: &str = "http://169.254.170.2";
const INSTANCE_HOST: &str = "http://169.254.169.254";
/// Hosts besides loopback that may be given a container's token without TLS, as AWS's own tools have it.
const CONTAINER_HOSTS: [&str; 3] = ["169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];
const SESSION: &str = "tierkv-vault";

/// Place that credentials come from.
enum Source {
    Environment,
    /// A token of a workload's identity, exchanged for credentials at `url`.
    WebIdentity {
        token_file: PathBuf,
        role: String,
        session: String,
        url: String,
    },
    Files,
    /// An endpoint of the container's host.
    Container {
        url: String,
    },
    /// The metadata of a virtual machine.
    Instance {
        host: String,
    },
}

/// Credentials and until when they serve, in ms since 1970.
struct Held {
    credentials: Arc<Credentials>,
    /// `None`: not known.
    expires_ms: Option<u64>,
    renew_ms: u64,
}

/// Credentials of one source.
pub(super) struct Chain {
    vars: Vars,
    source: Source,
    agent: Agent,
    held: Mutex<Option<Held>>,
    /// Held while credentials are renewed; others use the old ones meanwhile.
    renewing: Mutex<()>,
}

/// An answer that refuses a request; its code tells expired credentials from others.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) text: String,
    pub(super) code: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl Error for Refusal {}

/// Codes with which S3 servers refuse credentials that were good before.
const EXPIRED: [&str; 6] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestExpired",
    "TokenRefreshRequired",
];

/// Whether other credentials may help.
pub(super) fn is_expired(error: &io::Error) -> bool {
    let refusal = error.get_ref().and_then(|error| error.downcast_ref::<Refusal>());
    let code = refusal.and_then(|refusal| refusal.code.as_deref());
    code.is_some_and(|code| EXPIRED.contains(&code))
}

impl Chain {
    /// Finds the first source that is configured. A source that does not answer yet is one; only a machine's metadata, which
    /// nothing configures, must answer at once. The error names what was looked at.
    pub(super) fn open(
        vars: Vars,
        profile: &Profile,
        region: &str,
        agent: Agent,
    ) -> Result<Self, String> {
        let set = |name: &str| vars(name).filter(|value| !value.trim().is_empty());
        let identity = set("AWS_WEB_IDENTITY_TOKEN_FILE").zip(set("AWS_ROLE_ARN"));
        let identity = identity
            .or_else(|| profile.get("web_identity_token_file").zip(profile.get("role_arn")));
        let relative = set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
        let container = relative
            .map(|path| format!("{CONTAINER_HOST}{path}"))
            .or_else(|| set("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
        let source = if set("AWS_ACCESS_KEY_ID").is_some() && set("AWS_SECRET_ACCESS_KEY").is_some()
        {
            Source::Environment
        } else if let Some((token_file, role)) = identity {
            let at_s3 = || set("AWS_ENDPOINT_URL_STS").or_else(|| set("AWS_ENDPOINT_URL"));
            let url = at_s3().unwrap_or_else(|| format!("https://sts.{region}.amazonaws.com"));
            let session = set("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| SESSION.to_owned());
            Source::WebIdentity { token_file: token_file.into(), role, session, url }
        } else if profile.get("aws_access_key_id").is_some() {
            Source::Files
        } else if let Some(key) =
            ["credential_process", "sso_session", "sso_start_url", "source_profile"]
                .into_iter()
                .find(|key| profile.get(key).is_some())
        {
            return Err(format!(
                "profile {} has {key}, which a vault does not follow; give it keys, a web identity, or a container's or machine's role",
                profile.name
            ));
        } else if let Some(url) = container {
            let host = url.split("://").nth(1).and_then(|rest| rest.split('/').next());
            let host = host.unwrap_or_default();
            let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
            let is_near = ["127.0.0.1", "localhost", "[::1]"].contains(&name)
                || CONTAINER_HOSTS.contains(&host)
                || CONTAINER_HOSTS.contains(&name);
            if !url.starts_with("https://") && !is_near {
                return Err(format!(
                    "AWS_CONTAINER_CREDENTIALS_FULL_URI = {url}: its token would go unprotected to another machine; give an https address"
                ));
            }
            Source::Container { url }
        } else if set("AWS_EC2_METADATA_DISABLED").is_some_and(|is| is.eq_ignore_ascii_case("true"))
        {
            return Err(none());
        } else {
            let host = set("AWS_EC2_METADATA_SERVICE_ENDPOINT");
            let host = host.unwrap_or_else(|| INSTANCE_HOST.to_owned());
            Source::Instance { host: host.trim_end_matches('/').to_owned() }
        };
        let is_guess = matches!(source, Source::Instance { .. });
        let chain =
            Self { vars, source, agent, held: Mutex::default(), renewing: Mutex::default() };
        if is_guess && chain.get().is_err() {
            return Err(none());
        }
        Ok(chain)
    }

    /// Returns credentials, renewed where they expire soon.
    pub(super) fn get(&self) -> io::Result<Arc<Credentials>> {
        self.at(wall_ms())
    }

    fn at(&self, now_ms: u64) -> io::Result<Arc<Credentials>> {
        if let Some(held) = self.held().as_ref().filter(|held| now_ms < held.renew_ms) {
            return Ok(Arc::clone(&held.credentials));
        }
        let good = self.held().as_ref().filter(|held| held.is_good(now_ms)).map(Held::share);
        let _renewing = match (self.renewing.try_lock(), good) {
            (Ok(guard), _) => guard,
            (Err(TryLockError::Poisoned(guard)), _) => guard.into_inner(),
            (Err(TryLockError::WouldBlock), Some(good)) => return Ok(good),
            (Err(TryLockError::WouldBlock), None) => {
                self.renewing.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        // Another thread may have renewed them meanwhile.
        if let Some(held) = self.held().as_ref().filter(|held| now_ms < held.renew_ms) {
            return Ok(Arc::clone(&held.credentials));
        }
        match self.fetch(now_ms) {
            Ok(fresh) => {
                let credentials = Arc::clone(&fresh.credentials);
                *self.held() = Some(fresh);
                Ok(credentials)
            }
            Err(error) => match self.held().as_mut().filter(|held| held.is_good(now_ms)) {
                Some(held) => {
                    held.renew_ms = now_ms + CREDENTIALS_RETRY_MS;
                    Ok(Arc::clone(&held.credentials))
                }
                None => Err(error),
            },
        }
    }

    /// Returns other credentials than those that a server has refused; `None` where the source has no others.
    pub(super) fn instead_of(&self, refused: &Credentials) -> io::Result<Option<Arc<Credentials>>> {
        let mut held = self.held();
        if held.as_ref().is_some_and(|held| *held.credentials == *refused) {
            *held = None;
        }
        drop(held);
        let fresh = self.get()?;
        Ok(Some(fresh).filter(|fresh| **fresh != *refused))
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, name: &str) -> Option<String> {
        (self.vars)(name).filter(|value| !value.trim().is_empty())
    }

    fn fetch(&self, now_ms: u64) -> io::Result<Held> {
        match &self.source {
            Source::Environment => {
                let [key, secret, token] =
                    ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]
                        .map(|name| self.set(name));
                Held::new(now_ms, (key, secret, token), None)
            }
            Source::Files => {
                let profile = Profile::read(&self.vars);
                let [key, secret, token] =
                    ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"]
                        .map(|key| profile.get(key));
                let mut held = Held::new(now_ms, (key, secret, token), None)?;
                // Other programs renew the file.
                held.renew_ms = now_ms + CREDENTIALS_FILE_MS;
                Ok(held)
            }
            Source::WebIdentity { token_file, role, session, url } => {
                let token = std::fs::read_to_string(token_file).map_err(|error| {
                    io::Error::new(error.kind(), format!("{}: {error}", token_file.display()))
                })?;
                let form = [
                    ("Action", "AssumeRoleWithWebIdentity"),
                    ("Version", "2011-06-15"),
                    ("RoleArn", role),
                    ("RoleSessionName", session),
                    ("WebIdentityToken", token.trim()),
                ];
                let text =
                    said("AssumeRoleWithWebIdentity", quick(self.agent.post(url)).send_form(form))?;
                let element = |tag: &str| element(&text, tag).map(str::to_owned);
                let token = element("SessionToken");
                let expires = element("Expiration");
                Held::new(
                    now_ms,
                    (element("AccessKeyId"), element("SecretAccessKey"), token),
                    expires,
                )
            }
            Source::Container { url } => {
                let file = self.set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
                let token = match file {
                    Some(path) => Some(std::fs::read_to_string(path)?.trim().to_owned()),
                    None => self.set("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
                };
                let mut request = self.agent.get(url);
                if let Some(token) = token {
                    request = request.header("authorization", token);
                }
                from_json(now_ms, &said("container credentials", quick(request).call())?)
            }
            Source::Instance { host } => {
                let url = format!("{host}/latest/api/token");
                let request =
                    self.agent.put(&url).header("x-aws-ec2-metadata-token-ttl-seconds", "21600");
                let token = said("machine's token", quick(request).send_empty())?;
                let roles = format!("{host}/latest/meta-data/iam/security-credentials/");
                let ask = |url: &str| {
                    let request =
                        self.agent.get(url).header("x-aws-ec2-metadata-token", token.trim());
                    said("machine's role", quick(request).call())
                };
                let role = ask(&roles)?;
                from_json(
                    now_ms,
                    &ask(&format!("{roles}{}", role.lines().next().unwrap_or_default().trim()))?,
                )
            }
        }
    }
}

/// Wall clock in ms since 1970, with which the times of expiry agree.
fn wall_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default()
}

/// A request that waits only a moment.
fn quick<Any>(request: ureq::RequestBuilder<Any>) -> ureq::RequestBuilder<Any> {
    let within = Some(Duration::from_millis(CREDENTIALS_REQUEST_MS));
    request.config().timeout_connect(within).timeout_global(within).build()
}

fn none() -> String {
    "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for this process, or give it a profile, a web identity, or a container's or machine's role".to_owned()
}

impl Held {
    /// `expires`: as ISO 8601.
    fn new(
        now_ms: u64,
        (key, secret, token): (Option<String>, Option<String>, Option<String>),
        expires: Option<String>,
    ) -> io::Result<Self> {
        let (Some(key), Some(secret)) = (key, secret) else {
            return Err(io::Error::other("an answer without credentials"));
        };
        let credentials = match token {
            Some(token) => Credentials::new_with_token(key, secret, token),
            None => Credentials::new(key, secret),
        };
        let moment = expires.and_then(|text| text.parse::<Timestamp>().ok());
        let expires_ms = moment.and_then(|moment| u64::try_from(moment.as_millisecond()).ok());
        let renew_ms = expires_ms.map_or(u64::MAX, |expires| {
            let life = expires.saturating_sub(now_ms);
            expires.saturating_sub(CREDENTIALS_MARGIN_MS.min(life / 3))
        });
        Ok(Self { credentials: Arc::new(credentials), expires_ms, renew_ms })
    }

    fn is_good(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|expires| now_ms < expires)
    }

    fn share(&self) -> Arc<Credentials> {
        Arc::clone(&self.credentials)
    }
}

fn from_json(now_ms: u64, text: &str) -> io::Result<Held> {
    let [key, secret, token, expires] =
        ["AccessKeyId", "SecretAccessKey", "Token", "Expiration"].map(|name| field(text, name));
    Held::new(now_ms, (key, secret, token), expires)
}

/// Text of an XML element.
pub(super) fn element<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{tag}>"))?;
    rest.split_once(&format!("</{tag}>")).map(|(inner, _)| inner)
}

/// A string of a flat JSON object, as these services answer.
fn field(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("\"{name}\""))?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let (mut value, mut is_escaped) = (String::new(), false);
    for letter in rest.chars() {
        match letter {
            '\\' if !is_escaped => is_escaped = true,
            '"' if !is_escaped => return Some(value),
            _ => {
                is_escaped = false;
                value.push(letter);
            }
        }
    }
    None
}

/// Body of a successful answer.
fn said(what: &str, answer: Result<Response<Body>, ureq::Error>) -> io::Result<String> {
    let mut answer = answer.map_err(|error| {
        let error = error.into_io();
        io::Error::new(error.kind(), format!("{what}: {error}"))
    })?;
    let status = answer.status();
    let text = answer.body_mut().read_to_string().map_err(ureq::Error::into_io)?;
    if status.is_success() {
        return Ok(text);
    }
    let code = element(&text, "Code").unwrap_or_default();
    Err(io::Error::other(format!("{what}: {} {code}", status.as_u16())))
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
