//! The one look of tables in reports: a line below the header, columns aligned, no frames.

use comfy_table::{Cell, CellAlignment, ContentArrangement, TableComponent, presets};
use std::fmt;

/// A table for people. On a terminal it is as wide as that at most; elsewhere no line is broken, so
/// that `grep` and friends see whole rows.
#[derive(Debug)]
pub(crate) struct Table {
    table: comfy_table::Table,
    numbers: &'static [&'static str],
    header: &'static [&'static str],
}

impl Table {
    /// A table with these columns; those in `numbers` are aligned to the right.
    pub(crate) fn new(header: &'static [&'static str], numbers: &'static [&'static str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING);
        table.set_style(TableComponent::HeaderLines, '─');
        table.set_content_arrangement(ContentArrangement::Dynamic);
        let cells = { header.iter() }.map(|name| aligned(name, numbers.contains(name)));
        table.set_header(cells);
        let last = header.len().saturating_sub(1);
        for (place, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, if place == last { 0 } else { 2 }));
        }
        Self {
            table,
            numbers,
            header,
        }
    }

    /// Adds a row. Control characters are shown instead of sent to a terminal.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().zip(self.header);
        let cells = cells.map(|(text, name)| aligned(&visible(&text), self.numbers.contains(name)));
        self.table.add_row(cells);
    }
}

/// The lines of the table, each with its end.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.table.trim_fmt())
    }
}

fn aligned(text: &str, is_number: bool) -> Cell {
    let alignment = if is_number {
        CellAlignment::Right
    } else {
        CellAlignment::Left
    };
    Cell::new(text).set_alignment(alignment)
}

/// Bytes as text if they are UTF-8, and in hexadecimal if they are not.
pub(crate) fn text_or_hex(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(hex::encode(bytes))),
    }
}

/// The text with control characters, which a terminal would obey, written as `\u{1b}`.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// A number with a comma between thousands.
pub(crate) fn grouped(number: impl fmt::Display) -> String {
    let number = number.to_string();
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", number.as_str()),
    };
    let (whole, rest) = digits.split_at(
        digits
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(digits.len()),
    );
    let mut grouped = String::from(sign);
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_one_line_and_aligned_columns() {
        let mut table = Table::new(&["sku", "units", "remark"], &["units"]);
        table.row(["85123A", "6", ""].map(str::to_owned));
        table.row(["P", "1,200", "a\u{1b}[2Jb\nc"].map(str::to_owned));
        assert_eq!(
            table.to_string(),
            "sku     units  remark\n\
             ─────────────────────────────\n\
             85123A      6\n\
             P       1,200  a\\u{1b}[2Jb\\nc\n"
        );
    }

    #[test]
    fn thousands_are_grouped() {
        let table = [
            ("0", "0"),
            ("999", "999"),
            ("1000", "1,000"),
            ("-1234567", "-1,234,567"),
            ("-123", "-123"),
            ("12345.67 GBP", "12,345.67 GBP"),
        ];
        for (number, shown) in table {
            assert_eq!(grouped(number), shown);
        }
    }
}
