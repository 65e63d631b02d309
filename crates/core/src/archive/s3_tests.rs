//! Owns the proof of requests to a bucket against servers that answer as told.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::stand_in::{self, Asked};
use super::*;

fn bucket_at(url: &str, more: &[(&str, &str)]) -> Bucket {
    let own = [("AWS_ENDPOINT_URL", url), ("AWS_EC2_METADATA_DISABLED", "true")];
    let vars = stand_in::vars(&[&own, more].concat());
    Bucket::with("[vault] archive", "bucket", "here", vars).unwrap()
}

const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")];

/// Answers every request with 404 and the body of `says`.
fn bucket_without_objects(says: &Arc<Mutex<&'static str>>) -> Bucket {
    let says = Arc::clone(says);
    let url = stand_in::serve(move |_| (404, (*says.lock().unwrap()).to_owned()));
    bucket_at(&url, &KEYS)
}

#[test]
fn an_object_is_missing_only_where_the_server_says_so() {
    let says = Arc::new(Mutex::new(""));
    let bucket = bucket_without_objects(&says);
    let asks = |body: &'static str| {
        *says.lock().unwrap() = body;
        let kind = |error: io::Error| error.kind();
        let read = bucket.read("name", &mut [0; 8], 0).map_err(kind).unwrap_err();
        (bucket.bytes("name").map_err(kind).unwrap_err(), read, bucket.remove("name").is_ok())
    };
    let missing = (io::ErrorKind::NotFound, io::ErrorKind::NotFound, true);
    assert_eq!(asks("<Error><Code>NoSuchKey</Code></Error>"), missing);
    let unknown = (io::ErrorKind::Other, io::ErrorKind::Other, false);
    for body in ["<Error><Code>NoSuchBucket</Code></Error>", "default backend - 404", ""] {
        assert_eq!(asks(body), unknown, "{body:?}");
    }
}

#[test]
fn no_object_is_missing_where_the_server_was_not_reached() {
    let of = |bucket: &Bucket| {
        let error = bucket.read("name", &mut [0; 8], 0).unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::NotFound, "{error}");
        assert_ne!(bucket.bytes("name").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(bucket.remove("name").is_err());
        error.to_string()
    };
    // A port without a server, and no such host.
    for url in ["http://127.0.0.1:1", "http://nothing.invalid:9000"] {
        of(&bucket_at(url, &KEYS));
    }
    let url = stand_in::serve(|_| (200, String::new()));
    let missing = "/nothing/token";
    let token = ("AWS_WEB_IDENTITY_TOKEN_FILE", missing);
    assert!(of(&bucket_at(&url, &[("AWS_ROLE_ARN", "role"), token])).contains(missing));
    let token = ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", missing);
    of(&bucket_at(&url, &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url), token]));
}

#[test]
fn roots_of_trust_come_from_a_file_of_them() {
    let folder = std::env::temp_dir().join(format!("tierkv-roots-{}", std::process::id()));
    let made = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap().cert;
    std::fs::write(&folder, format!("# own\n{}{}", made("a").pem(), made("b").pem())).unwrap();
    assert_eq!(roots_in(Some(folder.clone())).len(), 2);
    std::fs::remove_file(&folder).unwrap();
    assert_eq!(roots_in(Some(folder)).len(), 0);
    assert_eq!(roots_in(None).len(), 0);
}

#[test]
fn a_bundle_of_authorities_that_cannot_be_read_is_refused() {
    let file = std::env::temp_dir().join(format!("tierkv-bundle-{}", std::process::id()));
    let path = file.to_str().unwrap();
    let open = |more: &[(&str, &str)]| {
        let own = ("AWS_ENDPOINT_URL", "https://s3.test:9000");
        let vars = stand_in::vars(&[&KEYS, more, &[own]].concat());
        Bucket::with("[vault] archive", "bucket", "here", vars)
            .map(drop)
            .map_err(|error| error.text)
    };
    let refused = open(&[("AWS_CA_BUNDLE", path)]).unwrap_err();
    assert!(refused.contains(path) && refused.contains("name a PEM file"), "{refused}");
    let profile = stand_in::Files::new(&format!("ca_bundle = {path}\n"));
    assert!(open(&[("AWS_CONFIG_FILE", profile.path())]).unwrap_err().contains(path));
    let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert;
    std::fs::write(&file, made.pem()).unwrap();
    assert_eq!(open(&[("AWS_CA_BUNDLE", path)]), Ok(()));
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_bucket_is_part_of_the_path_or_of_the_host() {
    let of = |more: &[(&str, &str)]| {
        let vars = stand_in::vars(&[&KEYS, more].concat());
        let bucket =
            Bucket::with("[vault] archive", "bucket", "here", vars).map_err(|error| error.text)?;
        Ok::<_, String>(bucket.place.object_url("name").to_string())
    };
    let own = ("AWS_ENDPOINT_URL", "http://s3.test:9000");
    let by_path = "http://s3.test:9000/bucket/name";
    let by_host = "http://bucket.s3.test:9000/name";
    assert_eq!(of(&[own]).unwrap(), by_path);
    assert_eq!(of(&[own, (VIRTUAL, "true")]).unwrap(), by_host);
    let of_aws = of(&[("AWS_REGION", "there")]).unwrap();
    assert!(of_aws.starts_with("https://bucket.s3.there."), "{of_aws}");
    let forced = of(&[("AWS_REGION", "there"), (VIRTUAL, "false")]).unwrap();
    assert!(forced.starts_with("https://s3.there.") && forced.ends_with("/bucket/name"));
    assert!(of(&[own, (VIRTUAL, "yes")]).unwrap_err().contains("write true or false"));
    let folder = stand_in::Files::new("s3 =\n  addressing_style = virtual\nregion = far\n");
    assert_eq!(of(&[own, ("AWS_CONFIG_FILE", folder.path())]).unwrap(), by_host);
    let folder = stand_in::Files::new("s3 =\n  addressing_style = round\n");
    let refused = of(&[own, ("AWS_CONFIG_FILE", folder.path())]).unwrap_err();
    assert!(refused.contains("addressing_style = round"), "{refused}");
}

/// A bucket and a token service at one address. The bucket takes the newest token only, and a token for a few requests.
#[test]
fn f146_tokens_that_a_server_no_longer_takes_are_renewed_and_nothing_fails() {
    let (issued, used) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let refused = Arc::new(AtomicU64::new(0));
    let counts = [&issued, &used, &refused].map(Arc::clone);
    let url = stand_in::serve(move |asked: &Asked| {
        let [issued, used, refused] = &counts;
        if asked.body.contains("AssumeRoleWithWebIdentity") {
            let number = issued.fetch_add(1, Ordering::AcqRel) + 1;
            used.store(0, Ordering::Release);
            return (200, stand_in::session(number, "2100-01-01T00:00:00Z"));
        }
        let is_new = asked.line.contains(&format!("token-{}&", issued.load(Ordering::Acquire)));
        if !is_new || used.fetch_add(1, Ordering::AcqRel) >= 3 {
            refused.fetch_add(1, Ordering::AcqRel);
            return (400, "<Error><Code>ExpiredToken</Code></Error>".to_owned());
        }
        (200, String::new())
    });
    let identity = stand_in::Files::new("");
    let bucket = bucket_at(
        &url,
        &[("AWS_ROLE_ARN", "role"), ("AWS_WEB_IDENTITY_TOKEN_FILE", identity.path())],
    );
    for number in 0..20 {
        let name = format!("object-{number}");
        bucket.put(&name, 9, &mut |_, _| Ok(())).unwrap();
        bucket.bytes(&name).unwrap();
        bucket.remove(&name).unwrap();
    }
    let [issued, refused] = [issued, refused].map(|count| count.load(Ordering::Acquire));
    assert!(issued >= 18 && refused >= 17, "{issued} issued, {refused} refused");
}

#[test]
fn credentials_that_are_refused_and_not_renewed_are_named() {
    let says = "<Error><Code>ExpiredToken</Code></Error>";
    let url = stand_in::serve(move |_| (400, says.to_owned()));
    let error = bucket_at(&url, &KEYS).remove("name").unwrap_err().to_string();
    assert!(error.contains("400 ExpiredToken"), "{error}");
}

#[test]
fn f147_uploads_of_a_dead_vault_are_aborted_and_no_others() {
    let asked = Arc::new(Mutex::new(Vec::<String>::new()));
    let seen = Arc::clone(&asked);
    let upload =
        |key: &str, id: &str| format!("<Upload><Key>{key}</Key><UploadId>{id}</UploadId></Upload>");
    let url = stand_in::serve(move |request: &Asked| {
        seen.lock().unwrap().push(request.line.clone());
        if request.line.starts_with("DELETE") {
            let is_gone = request.line.contains("uploadId=second");
            let says = "<Error><Code>NoSuchUpload</Code></Error>";
            return if is_gone { (404, says.to_owned()) } else { (204, String::new()) };
        }
        if request.line.contains("key-marker=here%2Fb") {
            let all = upload("here/a&amp;b.seg", "third");
            return (200, format!("<R><IsTruncated>false</IsTruncated>{all}</R>"));
        }
        let all = [upload("here/a.seg", "first"), upload("here/b.seg", "second")].concat();
        let other = upload("here/other/c.seg", "other");
        let next = "<NextKeyMarker>here/b.seg</NextKeyMarker><NextUploadIdMarker>second</NextUploadIdMarker>";
        (200, format!("<R><IsTruncated>true</IsTruncated>{next}{all}{other}</R>"))
    });
    assert_eq!(bucket_at(&url, &KEYS).clear().unwrap(), 3);
    let asked = asked.lock().unwrap();
    let aborted: Vec<_> = asked.iter().filter(|line| line.starts_with("DELETE")).collect();
    assert_eq!(aborted.len(), 3);
    assert!(aborted.iter().all(|line| line.contains("/bucket/here/") && !line.contains("other")));
    assert!(asked[0].contains("uploads") && asked[0].contains("prefix=here%2F"), "{}", asked[0]);
}

#[test]
fn an_archive_that_lists_no_uploads_says_so() {
    for (status, kind) in
        [(403, io::ErrorKind::PermissionDenied), (501, io::ErrorKind::Unsupported)]
    {
        let url = stand_in::serve(move |_| (status, String::new()));
        assert_eq!(bucket_at(&url, &KEYS).clear().unwrap_err().kind(), kind);
    }
}
