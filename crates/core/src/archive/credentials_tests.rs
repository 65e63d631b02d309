//! Owns the proof of the chain of credentials: which source is chosen, and that each is renewed in time.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::stand_in::{self, Asked, Files};
use super::*;

fn open(pairs: &[(&str, &str)]) -> Result<Chain, String> {
    let vars = stand_in::vars(pairs);
    let profile = Profile::read(&vars);
    Chain::open(
        vars,
        &profile,
        "here",
        Agent::config_builder().http_status_as_error(false).build().into(),
    )
}

fn key_of(chain: &Chain) -> String {
    chain.get().unwrap().key().to_owned()
}

const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "own"), ("AWS_SECRET_ACCESS_KEY", "secret")];
const NOWHERE: (&str, &str) = ("AWS_EC2_METADATA_DISABLED", "true");
const JSON: &str = r#"{"Code" : "Success", "AccessKeyId":"json","SecretAccessKey" : "a\/b","Token":"t","Expiration":"2100-01-01T00:00:00Z"}"#;

#[test]
fn the_first_source_that_is_configured_is_used() {
    let url = stand_in::serve(|asked: &Asked| {
        let says = |text: &str| (200, text.to_owned());
        let has = |header: &str| asked.headers.iter().any(|is| is.eq_ignore_ascii_case(header));
        match asked.line.split(' ').nth(1).unwrap() {
            "/sts/" | "/sts" => says(&stand_in::session(1, "2100-01-01T00:00:00Z")),
            "/container" if has("authorization: for-this-container") => says(JSON),
            "/latest/api/token" if asked.line.starts_with("PUT") => says("imds"),
            "/latest/meta-data/iam/security-credentials/" => says("role\n"),
            "/latest/meta-data/iam/security-credentials/role"
                if has("x-aws-ec2-metadata-token: imds") =>
            {
                says(JSON)
            }
            _ => (403, String::new()),
        }
    });
    let (sts, container) = (format!("{url}/sts"), format!("{url}/container"));
    let token = Files::new("");
    let keys = Files::new("aws_access_key_id = file\naws_secret_access_key = secret\n");
    let machine = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.as_str());
    let container = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", container.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "for-this-container"),
    ];
    let file = ("AWS_SHARED_CREDENTIALS_FILE", keys.path());
    let identity = [
        ("AWS_ROLE_ARN", "role"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.path()),
        ("AWS_ENDPOINT_URL_STS", sts.as_str()),
    ];
    let mut all = vec![machine];
    assert_eq!(key_of(&open(&all).unwrap()), "json");
    let secret = open(&all).unwrap().get().unwrap();
    assert_eq!((secret.secret(), secret.token()), ("a/b", Some("t")));
    all.extend(container);
    assert_eq!(key_of(&open(&all).unwrap()), "json");
    all.push(file);
    assert_eq!(key_of(&open(&all).unwrap()), "file");
    all.extend(identity);
    assert_eq!(key_of(&open(&all).unwrap()), "key-1");
    all.extend(KEYS);
    assert_eq!(key_of(&open(&all).unwrap()), "own");
}

#[test]
fn without_any_source_the_error_says_what_to_set() {
    let refused = |pairs: &[(&str, &str)]| open(pairs).map(drop).unwrap_err();
    assert!(refused(&[NOWHERE]).contains("set AWS_ACCESS_KEY_ID"));
    let silent = stand_in::serve(|_| (404, String::new()));
    assert!(
        refused(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &silent)])
            .contains("set AWS_ACCESS_KEY_ID")
    );
    let url = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://far.test/credentials");
    assert!(refused(&[url]).contains("unprotected"));
    let profile = Files::new("sso_session = mine\n");
    assert!(refused(&[("AWS_CONFIG_FILE", profile.path())]).contains("sso_session"));
}

/// Two hours of tokens that live for fifteen minutes.
#[test]
fn f146_tokens_are_renewed_before_they_expire_and_serve_on_while_nobody_issues_new_ones() {
    const MINUTE: u64 = 60_000;
    let now = Arc::new(AtomicU64::new(1_800_000_000_000));
    let (issued, is_down) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let stand = (Arc::clone(&now), Arc::clone(&issued), Arc::clone(&is_down));
    let sts = stand_in::serve(move |_| {
        let (now, issued, is_down) = &stand;
        if is_down.load(Ordering::Acquire) > 0 {
            return (503, String::new());
        }
        let expires = i64::try_from(now.load(Ordering::Acquire) + 15 * MINUTE).unwrap();
        let number = issued.fetch_add(1, Ordering::AcqRel) + 1;
        let expires = Timestamp::from_millisecond(expires).unwrap().to_string();
        (200, stand_in::session(number, &expires))
    });
    let token = Files::new("");
    let chain = open(&[
        ("AWS_ROLE_ARN", "role"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.path()),
        ("AWS_ENDPOINT_URL_STS", &sts),
    ])
    .unwrap();
    let at = |minutes: u64| {
        now.fetch_add(minutes * MINUTE, Ordering::AcqRel);
        chain.at(now.load(Ordering::Acquire)).map(|is| is.key().to_owned())
    };
    // One token serves for ten of its fifteen minutes.
    let used: Vec<_> = (0..120).map(|_| at(1).unwrap()).collect();
    assert_eq!(issued.load(Ordering::Acquire), 12);
    assert!(used.chunks(10).all(|ten| ten.iter().all(|key| *key == ten[0])), "{used:?}");
    is_down.store(1, Ordering::Release);
    let last = at(1);
    assert!(last.is_ok() && (0..3).all(|_| at(1).is_ok()), "the old token is good still");
    assert!(at(20).is_err(), "it has expired");
    is_down.store(0, Ordering::Release);
    assert_eq!(at(1).unwrap(), "key-13");
}

#[test]
fn a_file_that_another_program_renews_is_read_again() {
    let keys = |name: &str| format!("aws_access_key_id = {name}\naws_secret_access_key = secret\n");
    let file = Files::new(&keys("first"));
    let chain = open(&[("AWS_SHARED_CREDENTIALS_FILE", file.path()), NOWHERE]).unwrap();
    let begun = wall_ms();
    let at = |ms: u64| chain.at(begun + ms).unwrap().key().to_owned();
    assert_eq!(at(0), "first");
    file.write(&keys("second"));
    assert_eq!(at(CREDENTIALS_FILE_MS - 1), "first");
    assert_eq!(at(CREDENTIALS_FILE_MS), "second");
    file.write(&keys("third"));
    let refused = chain.get().unwrap();
    assert_eq!(chain.instead_of(&refused).unwrap().unwrap().key(), "third");
    let refused = chain.get().unwrap();
    assert!(chain.instead_of(&refused).unwrap().is_none(), "there are no others");
}
