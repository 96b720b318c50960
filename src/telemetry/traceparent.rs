//! `traceparent`, as <https://www.w3.org/TR/trace-context/> has it.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Version 00: two digits, 32 of the trace, 16 of the span, two of flags, and three hyphens.
const LENGTH: usize = 55;

/// Reads a `traceparent`. One that is not valid is none: whoever gets it begins a trace of their own. Of a newer
/// version counts what this one knows; what follows is left out.
#[must_use]
pub fn parse(text: &str) -> Option<SpanContext> {
    if !text.is_ascii() || text.len() < LENGTH {
        return None;
    }
    let (known, rest) = text.split_at(LENGTH);
    let mut parts = known.split('-');
    let mut part = |length: usize| {
        let part = parts.next().filter(|part| part.len() == length)?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        part.bytes().all(is_hex).then_some(part)
    };
    let (version, trace_id, span_id, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    let is_whole = match version {
        "ff" => false,
        "00" => rest.is_empty(),
        _ => rest.is_empty() || rest.starts_with('-'),
    };
    if !is_whole {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let trace_id = TraceId::from_hex(trace_id).ok()?;
    let span_id = SpanId::from_hex(span_id).ok()?;
    let context = SpanContext::new(trace_id, span_id, flags, true, TraceState::NONE);
    context.is_valid().then_some(context)
}

/// Writes one, of version 00.
#[must_use]
pub fn write(context: &SpanContext) -> String {
    let (trace_id, span_id) = (context.trace_id(), context.span_id());
    format!("00-{trace_id}-{span_id}-{:02x}", context.trace_flags())
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_valid_one_comes_out_as_it_went_in() {
        for valid in [VALID, &VALID.replace("-01", "-00")] {
            let context = parse(valid).unwrap();
            assert!(context.is_remote());
            assert_eq!(write(&context), valid);
        }
    }

    #[test]
    fn of_the_flags_only_sampled_is_passed_on() {
        let context = parse(&VALID.replace("-01", "-ff")).unwrap();
        assert_eq!(write(&context), VALID);
        let context = parse(&VALID.replace("-01", "-02")).unwrap();
        assert!(!context.is_sampled());
    }

    #[test]
    fn of_a_newer_version_counts_what_is_known() {
        for newer in [
            VALID.replacen("00", "cc", 1),
            format!(
                "{}-what-the-future-will-be-like",
                VALID.replacen("00", "01", 1)
            ),
        ] {
            let context = parse(&newer).unwrap();
            assert_eq!(write(&context), VALID, "{newer}");
        }
    }

    #[test]
    fn an_invalid_one_is_none() {
        let invalid = [
            "",
            "00",
            &VALID[..54],
            &format!("{VALID}-"),
            &format!("{VALID}0"),
            &format!("{VALID}-00"),
            &VALID.replacen("00", "01", 1).replace("-01", "-01x"),
            &VALID.replacen("00", "ff", 1),
            &VALID.to_uppercase(),
            &VALID.replace("0af7", "0AF7"),
            &VALID.replace("0af7", "0gf7"),
            &VALID.replace("0af7", "+af7"),
            &VALID.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &VALID.replace("b7ad6b7169203331", &"0".repeat(16)),
            &VALID.replace("-01", "-0g"),
            &VALID.replace('-', "_"),
            &VALID.replacen("-0af", "0-af", 1),
            &format!(" {VALID}"),
            &VALID.replace('a', "é"),
        ];
        for text in invalid {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
