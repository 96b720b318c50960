//! The file that names the providers: TOML with a section for each, and all its mistakes at once.
//!
//! Mistakes are shown by their place, and never with a line of the file or the value of a secret. Sections are read
//! by hand for that: a derived reader stops at the first mistake, and shows the value that it did not expect.

use super::alipay::Alipay;
use super::generic::{Encoding, Generic, Meaning, Pointers, Unit};
use super::keys::PublicKey;
use super::provider::Provider;
use super::stripe::Stripe;
use super::wechat::{ApiKey, WeChat};
use crate::domain;
use axum::http::HeaderName;
use ring::hmac;
use secrecy::{ExposeSecret, SecretString};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use strum::VariantNames;
use toml::{Table, Value};

/// How far the stamp of a request may be from now, unless the section says otherwise.
const TOLERANCE: Duration = Duration::from_secs(300);

/// Why a file of providers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("callbacks.file is {}: {problem}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        problem: String,
    },
    /// Some of its sections are wrong; all that is wrong is named.
    #[error("{}: {}", path.display(), problems.join("\n"))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong, each with its place.
        problems: Vec<String>,
    },
}

/// Providers by their names.
type Providers = BTreeMap<String, Arc<dyn Provider>>;

/// Reads a file of providers, and the files of keys and secrets that it names. Relative names of files start from
/// its own folder.
///
/// # Errors
/// [`Error`] that names everything that is wrong with it.
pub fn read(path: &Path) -> Result<BTreeMap<String, Arc<dyn Provider>>, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::Read {
        path: path.to_owned(),
        problem: error.to_string(),
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    parse(&text, folder).map_err(|problems| Error::Wrong {
        path: path.to_owned(),
        problems,
    })
}

fn parse(text: &str, folder: &Path) -> Result<Providers, Vec<String>> {
    // The error as a whole would show the line, with what may be a secret.
    let file: Table = toml::from_str(text).map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.unwrap_or_default().matches('\n').count() + 1;
        vec![format!("line {line}: {}", error.message())]
    })?;
    let (mut providers, mut problems) = (Providers::new(), Vec::new());
    let mut names = BTreeSet::new();
    if file.is_empty() {
        let problem =
            "there is no provider, expected [[alipay]], [[wechat]], [[stripe]] or [[generic]]";
        problems.push(problem.to_owned());
    }
    for (kind, sections) in file {
        let build: Build = match kind.as_str() {
            "alipay" => alipay,
            "wechat" => wechat,
            "stripe" => stripe,
            "generic" => generic,
            _ => {
                problems.push(format!(
                    "{kind} is no kind of provider, expected alipay, wechat, stripe or generic"
                ));
                continue;
            }
        };
        let Some(sections) = tables(sections) else {
            problems.push(format!("{kind}: expected sections [[{kind}]]"));
            continue;
        };
        for (number, table) in (1..).zip(sections) {
            let mut section = Section::new(format!("{kind} {number}"), table, folder);
            let name = section.name();
            let first = names.insert(name.as_str().to_owned());
            section.check(first, || format!("the name {name} is there twice"));
            let provider = build(&mut section, name);
            let wrong = section.problems();
            if let (Some(provider), true) = (provider, wrong.is_empty()) {
                providers.insert(provider.name().as_str().to_owned(), provider);
            }
            problems.extend(wrong);
        }
    }
    if problems.is_empty() {
        Ok(providers)
    } else {
        Err(problems)
    }
}

/// Makes a provider of a section, or none if it noted what is wrong.
type Build = fn(&mut Section<'_>, domain::Provider) -> Option<Arc<dyn Provider>>;

fn tables(value: Value) -> Option<Vec<Table>> {
    let Value::Array(values) = value else {
        return None;
    };
    let tables = values.into_iter().map(Value::try_into);
    tables.collect::<Result<_, _>>().ok()
}

/// A text that says something.
fn text(value: Value) -> Option<String> {
    let text: String = value.try_into().ok()?;
    (!text.trim().is_empty()).then_some(text)
}

fn alipay(section: &mut Section<'_>, name: domain::Provider) -> Option<Arc<dyn Provider>> {
    let app_ids = section.set("app_id");
    let seller_ids = section.set("seller_id");
    let keys = section.public_keys("public_key");
    let success = section.text("answer").unwrap_or("success".to_owned());
    Some(Arc::new(Alipay {
        name,
        app_ids,
        seller_ids,
        keys,
        success,
    }))
}

fn wechat(section: &mut Section<'_>, name: domain::Provider) -> Option<Arc<dyn Provider>> {
    let mchids = section.set("mchid");
    let appids = section.set("appid");
    let api_keys = section.secrets("api_key").into_iter().filter_map(|secret| {
        let key = ApiKey::new(secret.expose_secret().as_bytes());
        let bytes = secret.expose_secret().len();
        section.check(key.is_some(), || {
            format!("api_key has {bytes} bytes, expected 32")
        });
        key
    });
    let api_keys = api_keys.collect();
    let keys = section.wechat_keys();
    Some(Arc::new(WeChat {
        name,
        mchids,
        appids,
        keys,
        api_keys,
    }))
}

fn stripe(section: &mut Section<'_>, name: domain::Provider) -> Option<Arc<dyn Provider>> {
    let secrets = section.hmac_keys("secret");
    let order_field = section.text("order_field");
    let order_field = order_field.unwrap_or("metadata.order_id".to_owned());
    section.check(
        order_field.split('.').all(|name| !name.is_empty()),
        || "order_field: expected names with dots between them, such as metadata.order_id",
    );
    let order_field = order_field.replace('~', "~0").replace('/', "~1");
    let tolerance = section.tolerance();
    Some(Arc::new(Stripe {
        name,
        secrets,
        order_id: format!("/data/object/{}", order_field.replace('.', "/")),
        tolerance,
    }))
}

fn generic(section: &mut Section<'_>, name: domain::Provider) -> Option<Arc<dyn Provider>> {
    let secrets = section.hmac_keys("secret");
    let signature_header = section.header("signature_header");
    section.check(
        signature_header.is_some(),
        || "signature_header: expected the name of the header that holds the signature",
    );
    let signature_prefix = section.text("signature_prefix").unwrap_or_default();
    let encoding = section.one_of("encoding", Encoding::Hex);
    let timestamp = section.header("timestamp_header");
    let tolerance = section.tolerance();
    let unit = section.one_of::<Unit>("unit", None);
    let types = section.types();
    let refunds = [Meaning::RefundSucceeded, Meaning::RefundFailed];
    let refunds = types.values().any(|meaning| refunds.contains(meaning));
    let pointers = Pointers {
        event_type: section.pointer("type", true).unwrap_or_default(),
        order_id: section.pointer("order_id", true).unwrap_or_default(),
        trade_no: section.pointer("trade_no", true).unwrap_or_default(),
        amount: section.pointer("amount", true).unwrap_or_default(),
        currency: section.pointer("currency", true).unwrap_or_default(),
        // Nobody asks for it unless a type means a refund.
        refund_no: section.pointer("refund_no", refunds).unwrap_or_default(),
        reason: section.pointer("reason", false),
    };
    Some(Arc::new(Generic {
        name,
        secrets,
        signature_header: signature_header?,
        signature_prefix,
        encoding: encoding?,
        timestamp: timestamp.map(|header| (header, tolerance)),
        pointers,
        types,
        unit: unit?,
    }))
}

/// A section of the file, whose keys are taken one by one.
struct Section<'a> {
    place: String,
    table: Table,
    folder: &'a Path,
    known: Vec<String>,
    wrong: Vec<String>,
}

impl<'a> Section<'a> {
    fn new(place: String, table: Table, folder: &'a Path) -> Self {
        Self {
            place,
            table,
            folder,
            known: Vec::new(),
            wrong: Vec::new(),
        }
    }

    fn check<T: Display>(&mut self, holds: bool, problem: impl FnOnce() -> T) {
        if !holds {
            self.wrong.push(problem().to_string());
        }
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        self.known.push(key.to_owned());
        self.table.remove(key)
    }

    /// The name, which stands in the place of what is wrong from now on. A wrong one is noted and replaced, so
    /// that the rest is looked at as well.
    fn name(&mut self) -> domain::Provider {
        let name = match self.take("name") {
            Some(Value::String(name)) => name,
            _ => String::new(),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let dots = name.chars().all(|c| c == '.');
        if (1..=64).contains(&name.len()) && name.chars().all(is_name) && !dots {
            self.place = format!("{} ({name})", self.place);
            return domain::Provider::literal(&name);
        }
        self.wrong.push(
            "name: expected 1 to 64 ASCII letters, digits, underscores, hyphens or dots".to_owned(),
        );
        domain::Provider::literal(&self.place)
    }

    /// A text that may be missing.
    fn text(&mut self, key: &str) -> Option<String> {
        let text = text(self.take(key)?);
        self.check(text.is_some(), || format!("{key}: expected a text"));
        text
    }

    /// A text or a list of texts; nothing if it is missing.
    fn texts(&mut self, key: &str) -> Vec<String> {
        let texts = match self.take(key) {
            None => return Vec::new(),
            Some(Value::Array(values)) if !values.is_empty() => {
                values.into_iter().map(text).collect()
            }
            Some(value) => text(value).map(|text| vec![text]),
        };
        texts.unwrap_or_else(|| {
            let problem = format!("{key}: expected a text or a list of texts");
            self.wrong.push(problem);
            Vec::new()
        })
    }

    /// At least one text.
    fn set(&mut self, key: &str) -> BTreeSet<String> {
        let (before, texts) = (self.wrong.len(), self.texts(key));
        if texts.is_empty() && self.wrong.len() == before {
            self.wrong.push(format!(
                "{key} is missing, expected a text or a list of texts"
            ));
        }
        texts.into_iter().collect()
    }

    /// At least one secret, from `key` or from the files that `key_file` names.
    fn secrets(&mut self, key: &str) -> Vec<SecretString> {
        let before = self.wrong.len();
        let secrets: Vec<_> = self
            .texts(key)
            .into_iter()
            .map(SecretString::from)
            .collect();
        let of_files = self.texts(&format!("{key}_file"));
        let of_files: Vec<_> = { of_files.iter() }
            .filter_map(|file| self.file(&format!("{key}_file"), file))
            .collect();
        if secrets.is_empty() && of_files.is_empty() && self.wrong.len() == before {
            self.wrong.push(format!(
                "expected {key} or {key}_file, with a text or a list of texts"
            ));
        }
        secrets.into_iter().chain(of_files).collect()
    }

    /// What a file holds, without the end of its last line.
    fn file(&mut self, key: &str, file: &str) -> Option<SecretString> {
        let path = self.folder.join(file);
        let problem = match std::fs::read_to_string(&path) {
            Ok(text) if text.trim().is_empty() => "is empty".to_owned(),
            Ok(text) => return Some(text.trim_end_matches(['\r', '\n']).into()),
            Err(error) => error.to_string(),
        };
        self.wrong
            .push(format!("{key} is {}: {problem}", path.display()));
        None
    }

    fn hmac_keys(&mut self, key: &str) -> Vec<hmac::Key> {
        let secrets = self.secrets(key);
        let key = |secret: &SecretString| {
            hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes())
        };
        secrets.iter().map(key).collect()
    }

    fn public_keys(&mut self, key: &str) -> Vec<PublicKey> {
        let pems = self.secrets(key);
        { pems.iter() }
            .filter_map(|pem| self.public_key(key, pem))
            .collect()
    }

    fn public_key(&mut self, key: &str, pem: &SecretString) -> Option<PublicKey> {
        PublicKey::from_pem(pem.expose_secret())
            .map_err(|error| self.wrong.push(format!("{key} {error}")))
            .ok()
    }

    /// Certificates by their serials, and public keys by the ids that the file gives them.
    fn wechat_keys(&mut self) -> BTreeMap<String, PublicKey> {
        let before = self.wrong.len();
        let mut keys = Vec::new();
        let names = ["certificate", "certificate_file"];
        if names.into_iter().any(|name| self.table.contains_key(name)) {
            for key in self.public_keys("certificate") {
                match key.serial().map(str::to_owned) {
                    Some(serial) => keys.push((serial, key)),
                    None => self.wrong.push(
                        "certificate is a public key without a serial, expected it in public_key \
                         under its id"
                            .to_owned(),
                    ),
                }
            }
        }
        self.known.extend(names.map(str::to_owned));
        for (id, pem) in self.text_table("public_key") {
            let key = self.public_key(&format!("public_key.{id}"), &pem.into());
            keys.extend(key.map(|key| (id, key)));
        }
        for (id, file) in self.text_table("public_key_file") {
            let place = format!("public_key_file.{id}");
            let key = self.file(&place, &file);
            let key = key.and_then(|pem| self.public_key(&place, &pem));
            keys.extend(key.map(|key| (id, key)));
        }
        if keys.is_empty() && self.wrong.len() == before {
            self.wrong.push(
                "expected a certificate, a certificate_file, or a public_key or public_key_file \
                 under its id"
                    .to_owned(),
            );
        }
        let mut by_id = BTreeMap::new();
        for (id, key) in keys {
            if by_id.contains_key(&id) {
                self.wrong.push(format!("the key {id} is there twice"));
            }
            by_id.insert(id, key);
        }
        by_id
    }

    /// A table of texts; nothing if it is missing.
    fn text_table(&mut self, key: &str) -> Vec<(String, String)> {
        let pair = |(key, value)| Some((key, text(value)?));
        let pairs = match self.take(key) {
            None => return Vec::new(),
            Some(Value::Table(table)) => table.into_iter().map(pair).collect(),
            Some(_) => None,
        };
        pairs.unwrap_or_else(|| {
            let problem = format!("{key}: expected a table of texts");
            self.wrong.push(problem);
            Vec::new()
        })
    }

    fn tolerance(&mut self) -> Duration {
        match self.take("tolerance_seconds") {
            None => TOLERANCE,
            Some(Value::Integer(seconds @ 1..=86_400)) => {
                Duration::from_secs(seconds.unsigned_abs())
            }
            Some(_) => {
                self.wrong
                    .push("tolerance_seconds: expected an integer from 1 to 86400".to_owned());
                TOLERANCE
            }
        }
    }

    fn header(&mut self, key: &str) -> Option<HeaderName> {
        let text = self.text(key)?;
        let header = text.parse().ok();
        self.check(header.is_some(), || {
            format!("{key} is {text:?}, which is no name of a header")
        });
        header
    }

    /// One of the names of a type.
    fn one_of<T: FromStr + VariantNames>(
        &mut self,
        key: &str,
        default: impl Into<Option<T>>,
    ) -> Option<T> {
        let (before, text) = (self.wrong.len(), self.text(key));
        let value = match text {
            None => default.into(),
            Some(text) => text.parse().ok(),
        };
        self.check(value.is_some() || self.wrong.len() > before, || {
            format!("{key}: expected one of {}", T::VARIANTS.join(", "))
        });
        value
    }

    fn pointer(&mut self, key: &str, required: bool) -> Option<String> {
        let (before, text) = (self.wrong.len(), self.text(key));
        let is_pointer = match &text {
            Some(text) => text.starts_with('/'),
            None => !required || self.wrong.len() > before,
        };
        self.check(is_pointer, || {
            format!("{key}: expected a JSON pointer such as /data/id")
        });
        text
    }

    fn types(&mut self) -> BTreeMap<String, Meaning> {
        let (before, texts) = (self.wrong.len(), self.text_table("types"));
        let mut types = BTreeMap::new();
        for (name, text) in texts {
            match text.parse() {
                Ok(meaning) => {
                    types.insert(name, meaning);
                }
                Err(_) => self.wrong.push(format!(
                    "types.{name} is {text:?}, expected one of {}",
                    Meaning::VARIANTS.join(", ")
                )),
            }
        }
        if types.is_empty() && self.wrong.len() == before {
            self.wrong.push(format!(
                "types: expected a table from the provider's types to some of {}",
                Meaning::VARIANTS.join(", ")
            ));
        }
        types
    }

    /// Everything that is wrong, with its place. What was not taken by now is not known.
    fn problems(self) -> Vec<String> {
        let expected = self.known.join(", ");
        let unknown = { self.table.keys() }
            .map(|key| format!("{key} is not known here, expected some of {expected}"));
        let problems = self.wrong.iter().cloned().chain(unknown);
        problems
            .map(|problem| format!("{}: {problem}", self.place))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::provider::Verdict;
    use super::super::testing::{other_signer, signer};
    use super::*;
    use std::fs;

    const EXAMPLE: &str = include_str!("../../../docker/callbacks.example.toml");

    const STRIPE: &str = "[[stripe]]\nname = \"stripe\"\nsecret = \"hunter2\"\n";

    fn wrong(text: &str) -> String {
        parse(text, Path::new("")).err().unwrap().join("\n")
    }

    fn expect(text: &str, parts: &[&str]) {
        let problems = wrong(text);
        for part in parts {
            assert!(problems.contains(part), "{part}: {problems}");
        }
        assert!(!problems.contains("hunter2"), "{problems}");
    }

    /// The example with all the files that it names.
    fn example() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let secrets = folder.path().join("secrets");
        fs::create_dir(&secrets).unwrap();
        for (file, text) in [
            ("alipay.pem", signer().public_pem.as_str()),
            ("wechat-certificate.pem", &signer().certificate(&[0x51])),
            ("wechat-public-key.pem", &other_signer().public_pem),
            ("wechat-api-key", "0123456789abcdef0123456789abcdef\n"),
            ("stripe-new", "whsec_new\n"),
            ("stripe-old", "whsec_old\n"),
            ("till", "secret\n"),
        ] {
            fs::write(secrets.join(file), text).unwrap();
        }
        let path = folder.path().join("callbacks.toml");
        fs::write(&path, EXAMPLE).unwrap();
        (folder, path)
    }

    #[test]
    fn the_example_is_read() {
        let (_folder, path) = example();
        let providers = read(&path).unwrap();
        let names: Vec<_> = providers.keys().map(String::as_str).collect();
        assert_eq!(names, ["alipay", "stripe", "till", "wechat"]);
        for (name, provider) in &providers {
            assert_eq!(provider.name().as_str(), name);
        }
        let answer = providers["alipay"].answer(Verdict::Accepted);
        assert_eq!(answer.body, "success");
    }

    #[test]
    fn a_file_that_is_named_and_not_there_is_told() {
        let (folder, path) = example();
        fs::remove_file(folder.path().join("secrets/wechat-api-key")).unwrap();
        fs::write(folder.path().join("secrets/till"), "\n").unwrap();
        let problems = read(&path).err().unwrap().to_string();
        for part in [
            "wechat 1 (wechat): api_key_file is ",
            "secrets/wechat-api-key: No such file",
            "generic 1 (till): secret_file is ",
            "secrets/till: is empty",
        ] {
            assert!(problems.contains(part), "{part}: {problems}");
        }
        let nowhere = read(&folder.path().join("nowhere.toml"));
        let nowhere = nowhere.err().unwrap().to_string();
        assert!(nowhere.starts_with("callbacks.file is "), "{nowhere}");
    }

    #[test]
    fn secrets_stand_in_the_file_or_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("s"), "x\r\n").unwrap();
        for secrets in [
            "secret = \"a\"",
            "secret = [\"a\", \"b\"]",
            "secret_file = \"s\"",
            "secret = \"a\"\nsecret_file = [\"s\"]",
        ] {
            let text = format!("[[stripe]]\nname = \"s\"\n{secrets}\n");
            assert!(parse(&text, folder.path()).is_ok(), "{secrets}");
        }
        let mut section = Section::new(String::new(), Table::new(), folder.path());
        let of_file = section.file("secret_file", "s").unwrap();
        assert_eq!(of_file.expose_secret(), "x");
    }

    #[test]
    fn all_mistakes_are_named_with_their_places() {
        let alipay = "[[alipay]]\nname = \"a\"\napp_id = []\npublic_key = \"MII\"\nanswer = \"\"\n";
        let wechat = "[[wechat]]\nname = \"w\"\nmchid = \"1\"\nappid = \"2\"\n\
                      api_key = \"0123456789abcdef\"\n";
        let text = format!(
            "{STRIPE}order_field = \"a..b\"\ntolerance_seconds = 0\nhost = 1\n{STRIPE}\
             [[stripe]]\nname = \"a b\"\nsecret = 7\n{alipay}{wechat}[[paypal]]\nname = \"p\"\n"
        );
        expect(
            &text,
            &[
                "stripe 1 (stripe): order_field: expected names",
                "stripe 1 (stripe): tolerance_seconds: expected",
                "stripe 1 (stripe): host is not known here, expected some of name, secret, ",
                "stripe 3: name: expected 1 to 64",
                "stripe 3: secret: expected a text or a list of texts",
                "alipay 1 (a): app_id: expected a text or a list",
                "alipay 1 (a): seller_id is missing",
                "alipay 1 (a): public_key is no PEM",
                "alipay 1 (a): answer: expected a text",
                "wechat 1 (w): api_key has 16 bytes, expected 32",
                "wechat 1 (w): expected a certificate,",
                "paypal is no kind of provider, expected alipay,",
            ],
        );
    }

    #[test]
    fn a_name_belongs_to_one_provider_of_whatever_kind() {
        let other = "[[generic]]\nname = \"stripe\"\n";
        let taken = "stripe 1 (stripe): the name stripe is there twice";
        expect(
            &format!("{STRIPE}{STRIPE}"),
            &["stripe 2 (stripe): the name stripe is there twice"],
        );
        expect(&format!("{STRIPE}{other}"), &[taken]);
        for name in ["", ".", "..", "a/b", "é", &"x".repeat(65)] {
            let text = STRIPE.replace("\"stripe\"", &format!("\"{name}\""));
            expect(&text, &["stripe 1: name: expected 1 to 64"]);
        }
        let text = STRIPE.replace("\"stripe\"", "\"Stripe_eu-1.test\"");
        assert!(parse(&text, Path::new("")).is_ok());
    }

    #[test]
    fn no_secret_is_shown_by_a_mistake_beside_it() {
        expect(&STRIPE.replace("secret = ", "secret "), &["line 3: "]);
        expect(&STRIPE.replace("\"hunter2\"", "hunter2"), &["line 3: "]);
        expect(&STRIPE.replace("\"hunter2\"", "\"hunter2"), &["line 3: "]);
        expect("stripe = \"hunter2\"", &["expected sections [[stripe]]"]);
        expect("stripe = [\"hunter2\"]", &["expected sections [[stripe]]"]);
        expect(
            &STRIPE.replace("\"hunter2\"", "{ a = \"hunter2\" }"),
            &["secret: expected a text or a list of texts"],
        );
        expect(
            &STRIPE.replace("secret", "secrets"),
            &[
                "expected secret or secret_file",
                "secrets is not known here",
            ],
        );
        expect("", &["there is no provider"]);
    }

    #[test]
    fn a_generic_provider_says_where_everything_stands() {
        expect(
            "[[generic]]\nname = \"till\"\nencoding = \"rot13\"\norder_id = \"id\"\n\
             signature_header = \"a b\"\ntypes = { A = \"order.paid\", B = \"refund.failed\" }\n",
            &[
                "generic 1 (till): expected secret or secret_file",
                "signature_header is \"a b\", which is no name of a header",
                "encoding: expected one of hex, base64",
                "unit: expected one of minor, major",
                "types.A is \"order.paid\", expected one of payment.succeeded, payment.failed,",
                "order_id: expected a JSON pointer such as",
                "amount: expected a JSON pointer such as",
                "refund_no: expected a JSON pointer such as",
            ],
        );
        expect(
            "[[generic]]\nname = \"till\"\n",
            &[
                "signature_header: expected the name",
                "types: expected a table",
            ],
        );
    }

    #[test]
    fn wechats_keys_have_ids() {
        let section = |keys: &str| {
            format!(
                "[[wechat]]\nname = \"w\"\nmchid = \"1\"\nappid = \"2\"\n\
                 api_key = \"0123456789abcdef0123456789abcdef\"\n{keys}"
            )
        };
        let certificate = signer().certificate(&[0x51]);
        let public = &signer().public_pem;
        let read = |keys: &str| parse(&section(keys), Path::new("")).map(|_| ());
        let one = format!("certificate = '''{certificate}'''\n");
        let id = format!("public_key = {{ PUB_KEY_ID_1 = '''{public}''' }}\n");
        for keys in [&one, &id, &format!("{one}{id}")] {
            assert_eq!(read(keys), Ok(()));
        }
        let problem = |keys: &str| wrong(&section(keys));
        let without = format!("certificate = '''{public}'''\n");
        assert!(problem(&without).contains("a public key without a serial"));
        let twice = format!("certificate = ['''{certificate}''', '''{certificate}''']\n");
        assert!(problem(&twice).contains("the key 51 is there twice"));
        assert!(problem("public_key = { A = \"x\" }").contains("public_key.A is no PEM"));
        assert!(problem("public_key = \"x\"").contains("public_key: expected a table"));
    }
}
