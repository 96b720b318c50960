//! Hosts of the broker, and what is in their URLs.

use crate::broker::Setup;
use lapin::uri::AMQPUri;
use std::fmt;
use std::time::Duration;
use url::Url;

/// A host to connect to. It is shown without its password.
#[derive(Clone)]
pub(super) struct Host {
    pub(super) uri: AMQPUri,
    /// What is shown of its URL.
    at: String,
}

impl Host {
    /// Reads a URL. `heartbeat` is for one that says nothing of it.
    pub(super) fn parse(text: &str, heartbeat: Duration) -> Result<Self, Setup> {
        let url = Url::parse(text).map_err(|error| Setup::Url {
            // Where its password is cannot be told.
            at: "not a URL".to_owned(),
            problem: format!("{error}, expected amqp://USER:PASSWORD@HOST/VHOST"),
        })?;
        let at = shown(&url);
        match uri(&url, heartbeat) {
            Ok(uri) => Ok(Self { uri, at }),
            Err(problem) => Err(Setup::Url { at, problem }),
        }
    }

    pub(super) fn user(&self) -> String {
        self.uri.authority.userinfo.username.clone()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A URL with its password masked and without its parameters.
fn shown(url: &Url) -> String {
    let mut masked = url.clone();
    masked.set_query(None);
    masked.set_fragment(None);
    // Only a URL without a host has no place for a password, and then it has none.
    if url.password().is_some() && masked.set_password(Some("***")).is_err() {
        return format!("{}:", url.scheme());
    }
    masked.into()
}

/// A name of at most as many bytes as AMQP has room for.
const LONGEST_NAME: usize = 255;
const SMALLEST_FRAME: u32 = 4_096;
const PARAMETERS: [&str; 5] = [
    "heartbeat",
    "connection_timeout",
    "channel_max",
    "frame_max",
    "auth_mechanism",
];

fn uri(url: &Url, heartbeat: Duration) -> Result<AMQPUri, String> {
    if !["amqp", "amqps"].contains(&url.scheme()) {
        let scheme = url.scheme();
        return Err(format!(
            "{scheme} is no scheme of it, expected amqp or amqps"
        ));
    }
    let host = url.host_str().unwrap_or_default();
    if host.is_empty() {
        return Err("it names no host, expected amqp://USER:PASSWORD@HOST/VHOST".to_owned());
    }
    if let Some(path) = url.path().strip_prefix('/')
        && path.contains('/')
    {
        return Err(format!(
            "the virtual host {path} has a slash, write it as %2f"
        ));
    }
    if let Some((name, _)) = url
        .query_pairs()
        .find(|(name, _)| !PARAMETERS.contains(&name.as_ref()))
    {
        let known = PARAMETERS.join(", ");
        return Err(format!("unknown parameter {name}, expected one of {known}"));
    }
    let mut uri: AMQPUri = url.as_str().parse()?;
    // The brackets of an IPv6 address are part of the URL, not of the address.
    host.trim_start_matches('[')
        .trim_end_matches(']')
        .clone_into(&mut uri.authority.host);
    let userinfo = &uri.authority.userinfo;
    for (what, length) in [
        ("virtual host", uri.vhost.len()),
        ("user", userinfo.username.len()),
    ] {
        if length > LONGEST_NAME {
            return Err(format!(
                "a {what} of {length} bytes, expected at most {LONGEST_NAME}"
            ));
        }
    }
    if uri
        .query
        .frame_max
        .is_some_and(|size| size < SMALLEST_FRAME)
    {
        return Err(format!(
            "frame_max is too small, expected at least {SMALLEST_FRAME}"
        ));
    }
    let seconds = u16::try_from(heartbeat.as_secs()).unwrap_or(u16::MAX);
    uri.query.heartbeat.get_or_insert(seconds);
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::uri::AMQPScheme;

    fn parse(text: &str) -> Result<Host, Setup> {
        Host::parse(text, Duration::from_secs(10))
    }

    #[test]
    fn what_is_in_a_url_is_read() {
        let host = parse("amqps://shop:p%40ss@mq.example:1234/or%2fders?heartbeat=5").unwrap();
        let uri = &host.uri;
        assert_eq!(uri.scheme, AMQPScheme::AMQPS);
        assert_eq!(uri.authority.host, "mq.example");
        assert_eq!(uri.authority.port, 1234);
        assert_eq!(uri.authority.userinfo.password, "p@ss");
        assert_eq!(
            (uri.vhost.as_str(), uri.query.heartbeat),
            ("or/ders", Some(5))
        );
    }

    #[test]
    fn what_a_url_leaves_out_has_a_default() {
        let uri = parse("amqp://mq").unwrap().uri;
        assert_eq!(uri.authority.port, 5672);
        assert_eq!((uri.vhost.as_str(), uri.query.heartbeat), ("/", Some(10)));
        assert_eq!(parse("amqps://mq").unwrap().uri.authority.port, 5671);
        assert_eq!(parse("amqp://mq/").unwrap().uri.vhost, "");
    }

    #[test]
    fn an_ipv6_address_is_not_taken_for_localhost() {
        let uri = parse("amqp://[::1]:5673/shop").unwrap().uri;
        assert_eq!(
            (uri.authority.host.as_str(), uri.authority.port),
            ("::1", 5673)
        );
    }

    #[test]
    fn a_password_is_never_shown() {
        let host = parse("amqp://shop:s3cret@mq/shop?heartbeat=5").unwrap();
        assert_eq!(host.to_string(), "amqp://shop:***@mq/shop");
        assert_eq!(format!("{host:?}"), "amqp://shop:***@mq/shop");
        for broken in [
            "amqp//shop:s3cret@mq",
            "amqp://shop:s3cret@mq:port",
            "amqp://shop:s3cret@",
            "http://shop:s3cret@mq",
            "amqp://shop:s3cret@mq/?heartbeet=1",
        ] {
            let refused = parse(broken).unwrap_err();
            assert!(
                !format!("{refused} {refused:?}").contains("s3cret"),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_broken_url_is_refused_with_what_is_wrong() {
        for (text, problem) in [
            ("mq:5672", "mq is no scheme of it, expected amqp or amqps"),
            ("amqp:///shop", "it names no host"),
            (
                "amqp://mq/a/b",
                "the virtual host a/b has a slash, write it as %2f",
            ),
            ("amqp://mq?heartbeat=soon", "invalid digit"),
            (
                "amqp://mq?heartbeet=1",
                "unknown parameter heartbeet, expected one of",
            ),
            ("amqp://mq?frame_max=100", "frame_max is too small"),
            (
                &format!("amqp://mq/{}", "v".repeat(256)),
                "a virtual host of 256 bytes, expected at most 255",
            ),
        ] {
            let refused = parse(text).unwrap_err().to_string();
            assert!(refused.starts_with("broker.url is "), "{refused}");
            assert!(refused.contains(problem), "{refused}");
        }
    }
}
