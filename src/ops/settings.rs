//! `config show`: what follows from the settings.

use super::gates;
use crate::config::{Config, Entry, Origin};
use crate::gate::filter::Shape;

/// What is computed from the settings, for people to read.
#[must_use]
pub fn computed(config: &Config) -> Vec<Entry> {
    let entry = |key, value, doc| Entry {
        key,
        value,
        origin: Origin::Computed,
        doc,
    };
    let Shape {
        bits,
        hashes,
        expected,
        ..
    } = gates::shape(config);
    let filter = match expected {
        0 if config.gate.marks => "none, since gate.marks is true".to_owned(),
        0 => "none, since gate.filter_keys is 0".to_owned(),
        _ => format!("{bits} bits ({:.2} MB), {hashes} hashes", megabytes(bits)),
    };
    let filter = match config.gate.redis_url.as_str() {
        "" => format!("{filter}; not used without gate.redis_url"),
        _ => filter,
    };
    vec![
        entry(
            "retention.shortest_life",
            config.ways_back().to_string(),
            "The least that retention.life_seconds may be: all ways in which a message can come back, one after the other.",
        ),
        entry(
            "gate.filter",
            filter,
            "Each of the two generations of each role's filter.",
        ),
    ]
}

#[expect(
    clippy::cast_precision_loss,
    reason = "two digits are shown, and a filter of 2^53 bits fits no machine"
)]
fn megabytes(bits: u64) -> f64 {
    bits as f64 / 8e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(config: &Config, key: &str) -> String {
        let computed = computed(config).into_iter();
        let mut of_key = computed.filter(|entry| entry.key == key);
        of_key.next().unwrap().value
    }

    #[test]
    fn ten_million_keys_at_one_in_a_hundred_take_twelve_megabytes() {
        let mut config = Config::default();
        config.gate.filter_keys = 10_000_000;
        config.gate.filter_mistakes = 100;
        let expected = "95850624 bits (11.98 MB), 7 hashes; not used without gate.redis_url";
        assert_eq!(shown(&config, "gate.filter"), expected);
        config.gate.marks = true;
        let expected = "none, since gate.marks is true; not used without gate.redis_url";
        assert_eq!(shown(&config, "gate.filter"), expected);
        config.gate.marks = false;
        config.gate.filter_keys = 0;
        let expected = "none, since gate.filter_keys is 0; not used without gate.redis_url";
        assert_eq!(shown(&config, "gate.filter"), expected);
    }

    #[test]
    fn the_shortest_life_is_shown_with_its_terms() {
        assert_eq!(
            shown(&Config::default(), "retention.shortest_life"),
            "2178940 s = retries 17140 + processing 1800 + dead letters 1209600 + outbox 259200 \
             + replay 604800 + slack 86400"
        );
    }
}
