//! Rows of a CSV file, each with the number of its line and, if it is broken, what is wrong.
//!
//! A broken row must not take its neighbours along: a quote that is never closed would swallow
//! all rows after it, so a row may only go on over the next lines if none of them is a row itself.

use super::Error;
use csv::{ByteRecord, ReaderBuilder};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};

/// Longest row, in bytes.
pub(super) const MAX_BYTES: usize = 64 * 1024;

/// How many lines a row with line breaks inside quotes may have after its first.
const MAX_MORE_LINES: usize = 32;

/// Why the fields of a row are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// It has this many fields instead of one for each column.
    Fields(usize),
    /// A quote is never closed, or text follows it.
    Quote,
    /// It is longer than [`MAX_BYTES`].
    TooLong,
}

/// A row of the file.
#[derive(Debug)]
pub(super) struct Row<'a> {
    /// The number of its first line; the header is line 1.
    pub(super) line: u64,
    /// Its fields; if it is broken, what stands between commas, to tell where it belongs.
    pub(super) fields: &'a ByteRecord,
    /// What is wrong with it.
    pub(super) broken: Option<Broken>,
}

/// Reads rows one by one; lines with nothing on them are none.
#[derive(Debug)]
pub(super) struct Rows<R> {
    lines: Lines<R>,
    text: Vec<u8>,
    fields: ByteRecord,
    columns: usize,
}

impl<R: Read> Rows<R> {
    /// Starts to read, with the names of the columns.
    pub(super) fn new(input: R) -> Result<(Self, Vec<String>), Error> {
        let mut rows = Self {
            lines: Lines {
                input: BufReader::new(input),
                number: 0,
                ahead: VecDeque::new(),
            },
            text: Vec::new(),
            fields: ByteRecord::new(),
            columns: 0,
        };
        loop {
            let line = rows.next_line()?.ok_or(Error::Empty)?;
            if line == 1 && rows.text.starts_with(b"\xEF\xBB\xBF") {
                rows.text.drain(..3);
            }
            if !rows.text.trim_ascii().is_empty() {
                break;
            }
        }
        if !rows.parse() {
            rows.split();
        }
        rows.columns = rows.fields.len();
        let name = |field| String::from_utf8_lossy(field).trim().to_owned();
        let names = rows.fields.iter().map(name).collect();
        Ok((rows, names))
    }

    /// The next row.
    pub(super) fn read(&mut self) -> Result<Option<Row<'_>>, Error> {
        let line = loop {
            match self.next_line()? {
                None => return Ok(None),
                Some(_) if self.text.is_empty() => {}
                Some(line) => break line,
            }
        };
        let broken = if self.text.len() > MAX_BYTES {
            self.text.truncate(MAX_BYTES);
            Some(Broken::TooLong)
        } else if !self.text.contains(&b'"') {
            self.split();
            None
        } else {
            let closed = match scan(&self.text) {
                Scan::Closed(_) => true,
                Scan::Open => self.complete()?,
                Scan::Torn => false,
            };
            (!closed || !self.parse()).then_some(Broken::Quote)
        };
        if broken.is_some() {
            self.split();
        }
        let found = self.fields.len();
        let broken = broken.or((found != self.columns).then_some(Broken::Fields(found)));
        let fields = &self.fields;
        Ok(Some(Row {
            line,
            fields,
            broken,
        }))
    }

    fn next_line(&mut self) -> Result<Option<u64>, Error> {
        self.lines.read(&mut self.text)
    }

    /// Tries to close a quote with the lines that follow. If that gives no row, they are read
    /// again as rows of their own.
    fn complete(&mut self) -> Result<bool, Error> {
        let first = self.text.len();
        let mut taken = Vec::new();
        while taken.len() < MAX_MORE_LINES {
            let mut more = Vec::new();
            let Some(number) = self.lines.read(&mut more)? else {
                break;
            };
            self.text.push(b'\n');
            self.text.extend_from_slice(&more);
            let is_row = scan(&more) == Scan::Closed(self.columns);
            taken.push((number, more));
            if is_row || self.text.len() > MAX_BYTES {
                break;
            }
            match scan(&self.text) {
                Scan::Closed(fields) if fields == self.columns => return Ok(true),
                Scan::Open => {}
                Scan::Closed(_) | Scan::Torn => break,
            }
        }
        self.text.truncate(first);
        for line in taken.into_iter().rev() {
            self.lines.ahead.push_front(line);
        }
        Ok(false)
    }

    /// The fields of a row without quotes.
    fn split(&mut self) {
        self.fields.clear();
        for field in self.text.split(|&byte| byte == b',') {
            self.fields.push_field(field);
        }
    }

    /// The fields of a row with quotes.
    fn parse(&mut self) -> bool {
        ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .buffer_capacity(1024)
            .from_reader(self.text.as_slice())
            .read_byte_record(&mut self.fields)
            .unwrap_or(false)
    }
}

/// Lines of a file, with those that were looked at and given back.
#[derive(Debug)]
struct Lines<R> {
    input: BufReader<R>,
    number: u64,
    ahead: VecDeque<(u64, Vec<u8>)>,
}

impl<R: Read> Lines<R> {
    /// Puts the next line without its end into `text`, and returns its number. Of a line that is
    /// too long it keeps one byte more than is allowed.
    fn read(&mut self, text: &mut Vec<u8>) -> Result<Option<u64>, Error> {
        if let Some((number, line)) = self.ahead.pop_front() {
            *text = line;
            return Ok(Some(number));
        }
        text.clear();
        self.fill(text).map_err(|source| Error::Read {
            line: self.number + 1,
            source,
        })
    }

    fn fill(&mut self, text: &mut Vec<u8>) -> io::Result<Option<u64>> {
        // Two bytes more than a line may have are the line end of the longest.
        let limit = u64::try_from(MAX_BYTES + 2).unwrap_or(u64::MAX);
        if self.input.by_ref().take(limit).read_until(b'\n', text)? == 0 {
            return Ok(None);
        }
        if text.pop_if(|last| *last == b'\n').is_some() {
            text.pop_if(|last| *last == b'\r');
        } else if text.len() > MAX_BYTES {
            self.input.skip_until(b'\n')?;
        }
        self.number += 1;
        Ok(Some(self.number))
    }
}

/// What the quotes of a text say.
#[derive(Debug, PartialEq, Eq)]
enum Scan {
    /// Each is closed; there are this many fields.
    Closed(usize),
    /// The last one is not closed.
    Open,
    /// One is followed by something else than a comma.
    Torn,
}

/// A quote opens only at the start of a field, so `12" RULER` is text.
fn scan(text: &[u8]) -> Scan {
    let mut fields = 1;
    let mut rest = text;
    loop {
        if let Some(mut quoted) = rest.strip_prefix(b"\"") {
            loop {
                let Some(end) = quoted.iter().position(|&byte| byte == b'"') else {
                    return Scan::Open;
                };
                quoted = quoted.get(end + 1..).unwrap_or_default();
                match quoted.split_first() {
                    Some((b'"', after)) => quoted = after,
                    Some((b',', _)) | None => break,
                    Some(_) => return Scan::Torn,
                }
            }
            rest = quoted;
        }
        match rest.iter().position(|&byte| byte == b',') {
            None => return Scan::Closed(fields),
            Some(comma) => {
                fields += 1;
                rest = rest.get(comma + 1..).unwrap_or_default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line, fields and fault of each row after the header `a,b,c`.
    fn read(text: &[u8]) -> Vec<(u64, Vec<String>, Option<Broken>)> {
        let input = [b"a,b,c\n", text].concat();
        let (mut rows, names) = Rows::new(input.as_slice()).unwrap();
        assert_eq!(names, ["a", "b", "c"]);
        let mut all = Vec::new();
        while let Some(row) = rows.read().unwrap() {
            let fields = row.fields.iter();
            let fields = fields.map(|f| String::from_utf8_lossy(f).into_owned());
            all.push((row.line, fields.collect(), row.broken));
        }
        all
    }

    fn row(line: u64, fields: [&str; 3]) -> (u64, Vec<String>, Option<Broken>) {
        (line, fields.map(str::to_owned).to_vec(), None)
    }

    fn faults(text: &str) -> Vec<(u64, Option<Broken>)> {
        let all = read(text.as_bytes()).into_iter();
        all.map(|(line, _, broken)| (line, broken)).collect()
    }

    #[test]
    fn lines_are_numbered_as_in_the_file() {
        assert_eq!(
            read(b"1,2,3\r\n\n\r\n4,5,6"),
            [row(2, ["1", "2", "3"]), row(5, ["4", "5", "6"])]
        );
    }

    #[test]
    fn quotes_hold_commas_quotes_and_line_breaks() {
        assert_eq!(
            read(b"1,\"x,\"\"y\"\"\",3\n4,\"two\nlines, \"\"or\"\"\n\nso\",6\n7,,\"\"\n"),
            [
                row(2, ["1", "x,\"y\"", "3"]),
                row(3, ["4", "two\nlines, \"or\"\n\nso", "6"]),
                row(7, ["7", "", ""]),
            ]
        );
        assert_eq!(
            read(b"1,12\" RULER,3\n"),
            [row(2, ["1", "12\" RULER", "3"])]
        );
    }

    #[test]
    fn a_broken_row_takes_no_other_along() {
        let quote = Some(Broken::Quote);
        assert_eq!(
            faults("1,2\n1,2,3\n1,2,3,4\n"),
            [
                (2, Some(Broken::Fields(2))),
                (3, None),
                (4, Some(Broken::Fields(4)))
            ]
        );
        assert_eq!(faults("1,\"2,3\n1,2,3\n"), [(2, quote), (3, None)]);
        assert_eq!(faults("1,\"2,3"), [(2, quote)]);
        assert_eq!(faults("1,\"2\"x,3\n1,2,3\n"), [(2, quote), (3, None)]);
        // The second quote would close the first and make three fields of all.
        assert_eq!(
            faults("1,\"2,3\n1,2,3\n1,2\",3\n"),
            [(2, quote), (3, None), (4, None)]
        );
        assert_eq!(
            faults("1,\"2,3\n1,\"2\",3\n1,\"2,3\n1,2,3\n"),
            [(2, quote), (3, None), (4, quote), (5, None)]
        );
    }

    #[test]
    fn a_row_has_a_greatest_length() {
        let long = "x".repeat(MAX_BYTES - 4);
        assert_eq!(
            faults(&format!("1,{long},3\n1,{long}x,3\n1,{long}xx,3\r\n1,2,3\n")),
            [
                (2, None),
                (3, Some(Broken::TooLong)),
                (4, Some(Broken::TooLong)),
                (5, None)
            ]
        );
    }

    #[test]
    fn a_byte_order_mark_and_empty_lines_come_before_the_names() {
        let (_, names) = Rows::new(&b"\xEF\xBB\xBF\n \"a\" ,b\n"[..]).unwrap();
        assert_eq!(names.len(), 2);
        let (_, names) = Rows::new(&b"\xEF\xBB\xBF\"a\",b \r\n"[..]).unwrap();
        assert_eq!(names, ["a", "b"]);
        assert!(matches!(Rows::new(&b"\n \n"[..]), Err(Error::Empty)));
    }
}
