//! The diagrams of `states.md`, drawn from what the state machines decide.

use super::testing::{OrderRows, StockRows};
use super::{EventType, inventory, order};
use std::fmt::Write;

const STATES: &str = "src/domain/states.md";
const RENEW: &str = "ORDERONCE_BLESS=1 cargo test --lib diagram";

/// The steps between statuses, in the order in which they were found.
#[derive(Default)]
struct Diagram {
    steps: Vec<(String, String, Vec<EventType>)>,
}

impl Diagram {
    fn add(&mut self, from: Option<&str>, to: Option<&str>, event: EventType) {
        let Some(to) = to.filter(|_| from != to) else {
            return;
        };
        let from = from.unwrap_or("[*]");
        let mut steps = self.steps.iter_mut();
        match steps.find(|step| step.0 == from && step.1 == to) {
            Some((.., events)) if events.contains(&event) => {}
            Some((.., events)) => events.push(event),
            None => self
                .steps
                .push((from.to_owned(), to.to_owned(), vec![event])),
        }
    }

    /// Mermaid's text. A status that nothing leaves is an end.
    fn text(&self) -> String {
        let mut text = "stateDiagram-v2\n".to_owned();
        for (from, to, events) in &self.steps {
            let events: Vec<&str> = events.iter().map(|event| event.name()).collect();
            writeln!(text, "    {from} --> {to}: {}", events.join(", ")).unwrap();
        }
        let mut ends: Vec<&str> = Vec::new();
        for (_, to, _) in &self.steps {
            let left = self.steps.iter().any(|(from, ..)| from == to);
            if !left && !ends.contains(&to.as_str()) {
                ends.push(to);
                writeln!(text, "    {to} --> [*]").unwrap();
            }
        }
        text
    }
}

fn order_diagram() -> String {
    let status = |rows: &OrderRows| rows.state.order.as_ref().map(|order| order.status.into());
    let mut diagram = Diagram::default();
    for (_, before) in order::tests::columns() {
        for (_, event, context) in order::tests::events() {
            let mut after = before.clone();
            after.handle(&event, &context);
            diagram.add(status(&before), status(&after), event.event_type());
        }
    }
    diagram.text()
}

fn reservation_diagram() -> String {
    let status = |rows: &StockRows| {
        rows.reservations
            .values()
            .next()
            .map(|row| row.status.into())
    };
    let mut diagram = Diagram::default();
    for (_, before) in inventory::tests::columns() {
        for (_, event) in inventory::tests::events() {
            let mut after = before.clone();
            after.handle(&event);
            diagram.add(status(&before), status(&after), event.event_type());
        }
    }
    diagram.text()
}

/// The page with the contents of its Mermaid blocks replaced, in their order.
fn with_diagrams(page: &str, diagrams: &[String]) -> String {
    const OPEN: &str = "```mermaid\n";
    let mut parts = page.split(OPEN);
    let mut text = parts.next().unwrap_or_default().to_owned();
    let parts: Vec<&str> = parts.collect();
    assert_eq!(parts.len(), diagrams.len(), "mermaid blocks in {STATES}");
    for (part, diagram) in parts.iter().zip(diagrams) {
        let (_, rest) = part.split_once("```").expect("the end of a mermaid block");
        text += &format!("{OPEN}{diagram}```{rest}");
    }
    text
}

#[test]
fn the_diagrams_in_the_docs_are_those_of_the_code() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(STATES);
    let page = std::fs::read_to_string(&path).unwrap();
    let expected = with_diagrams(&page, &[order_diagram(), reservation_diagram()]);
    if std::env::var_os("ORDERONCE_BLESS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    } else {
        assert!(
            page == expected,
            "{STATES} is out of date: {RENEW}\n{expected}"
        );
    }
}

#[test]
fn the_tables_in_the_docs_name_every_status_and_every_event() {
    use strum::IntoEnumIterator;

    let page = include_str!("states.md");
    let roles = super::RoleName::BUILT_IN;
    for kind in EventType::iter().filter(|kind| kind.consumer().is_some_and(|r| roles.contains(&r)))
    {
        assert!(page.contains(&format!("| `{kind}`")), "no row for {kind}");
    }
    let heads: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| event"))
        .collect();
    for status in order::OrderStatus::iter() {
        assert!(
            heads[0].contains(&format!("| {status} ")),
            "no column for {status}"
        );
    }
    for status in inventory::ReservationStatus::iter() {
        assert!(
            heads[1].contains(&format!("| {status} ")),
            "no column for {status}"
        );
    }
}
