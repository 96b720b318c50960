//! Shows what payment providers said, as it came.

use super::table::{Table, text_or_hex, visible};
use crate::store::{self, CallbackRow, CallbackVerdict, Store};
use serde::Serialize;
use std::fmt;

/// Why a callback is not shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such callback.
    #[error(
        "there is no callback {0}, `orderonce callbacks list` shows them; they are removed after callbacks.keep_seconds"
    )]
    NotFound(i64),
    /// The database.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Which callbacks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those about this order.
    pub about: Option<String>,
    /// Those with this verdict.
    pub verdict: Option<CallbackVerdict>,
}

/// Callbacks, youngest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct List {
    /// The callbacks.
    pub callbacks: Vec<CallbackRow>,
}

/// One callback with its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// The callback.
    #[serde(flatten)]
    pub callback: CallbackRow,
    /// Its body as text, if it is UTF-8.
    pub text: Option<String>,
    /// Its body in hexadecimal, if it is not.
    pub hex: Option<String>,
}

/// Lists up to `limit` callbacks.
///
/// # Errors
/// [`store::Error`].
pub async fn list(store: &dyn Store, filter: &Filter, limit: u32) -> store::Result<List> {
    let about = filter.about.as_deref();
    let callbacks = store.callbacks(about, filter.verdict, limit).await?;
    Ok(List { callbacks })
}

/// Shows one callback.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Store`].
pub async fn show(store: &dyn Store, id: i64) -> Result<Shown, Error> {
    let callback = store.callback(id).await?.ok_or(Error::NotFound(id))?;
    let (text, hex) = text_or_hex(&callback.body);
    Ok(Shown {
        callback,
        text,
        hex,
    })
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.callbacks.is_empty() {
            return writeln!(f, "no callbacks");
        }
        let header = &[
            "id",
            "verdict",
            "provider",
            "received at",
            "about",
            "from",
            "detail",
        ];
        let mut table = Table::new(header, &["id"]);
        for callback in &self.callbacks {
            table.row([
                callback.id.to_string(),
                callback.verdict.to_string(),
                callback.provider.clone(),
                callback.received_at.to_string(),
                callback.subject.clone(),
                callback.remote.clone(),
                callback.detail.clone(),
            ]);
        }
        write!(f, "{table}")
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let callback = &self.callback;
        let (id, provider, verdict) = (callback.id, &callback.provider, callback.verdict);
        writeln!(f, "callback {id} of {}, {verdict}", visible(provider))?;
        writeln!(f, "received    {}", callback.received_at)?;
        writeln!(f, "from        {}", visible(&callback.remote))?;
        if !callback.subject.is_empty() {
            writeln!(f, "about       {}", visible(&callback.subject))?;
        }
        if !callback.detail.is_empty() {
            writeln!(f, "detail      {}", visible(&callback.detail))?;
        }
        writeln!(f, "key         {}", callback.key)?;
        for (name, value) in &callback.headers {
            writeln!(f, "header      {}: {}", visible(name), visible(value))?;
        }
        match (&self.text, &self.hex) {
            (Some(text), _) => writeln!(f, "body        {}", visible(text)),
            (None, Some(hex)) => writeln!(f, "bytes       {hex}"),
            (None, None) => Ok(()),
        }
    }
}
