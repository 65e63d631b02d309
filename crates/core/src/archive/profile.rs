//! Owns the profile in the files of AWS's own tools: keys, region, and how a bucket is addressed.

use std::collections::HashMap;
use std::path::PathBuf;

use super::credentials::Vars;

/// One profile of both files; keys of a nested section are named `section.key`.
pub(super) struct Profile {
    pub(super) name: String,
    values: HashMap<String, String>,
}

impl Profile {
    /// Reads the profile that the environment names; an absent file or profile has no keys.
    pub(super) fn read(vars: &Vars) -> Self {
        let set = |name: &str| vars(name).filter(|value| !value.trim().is_empty());
        let name = set("AWS_PROFILE").or_else(|| set("AWS_DEFAULT_PROFILE"));
        let name = name.unwrap_or_else(|| "default".to_owned());
        let home = set("HOME").map(PathBuf::from);
        let file = |variable: &str, short: &str| {
            let own = home.as_ref().map(|home| home.join(".aws").join(short));
            let path = set(variable).map(PathBuf::from).or(own)?;
            std::fs::read_to_string(path).ok()
        };
        let mut values = HashMap::new();
        // The file of credentials comes last, because its keys go before those of the other.
        for text in
            [file("AWS_CONFIG_FILE", "config"), file("AWS_SHARED_CREDENTIALS_FILE", "credentials")]
        {
            values.extend(section(&text.unwrap_or_default(), &name));
        }
        Self { name, values }
    }

    /// A value that is not empty.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        self.values.get(key).filter(|value| !value.is_empty()).cloned()
    }
}

/// Keys of one profile; a file names it `[name]` or `[profile name]`.
fn section(text: &str, name: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    let (mut is_inside, mut outer) = (false, String::new());
    for line in text.lines() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if let Some(title) = bare.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let title = title.trim();
            is_inside = title.strip_prefix("profile ").map_or(title, str::trim) == name;
            outer.clear();
            continue;
        }
        let Some((key, value)) = bare.split_once('=').filter(|_| is_inside) else { continue };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
        if line.starts_with([' ', '\t']) && !outer.is_empty() {
            found.insert(format!("{outer}.{key}"), value);
        } else {
            outer = if value.is_empty() { key.clone() } else { String::new() };
            found.insert(key, value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_as_aws_writes_it() {
        let text = "[default]\nregion = here\n# note\n[profile far]\nregion=there\ns3 =\n  addressing_style = virtual\n\
                    role_arn = r\n[other]\nregion = nowhere\n";
        let far = section(text, "far");
        assert_eq!(far["region"], "there");
        assert_eq!(far["s3.addressing_style"], "virtual");
        assert_eq!(far["role_arn"], "r");
        assert_eq!(section(text, "default").len(), 1);
        assert!(section(text, "none").is_empty());
    }
}
