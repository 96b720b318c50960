//! Accounts: points and balances.

use super::{AccountState, Said, Verdict, int, joined, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Default)]
pub(super) struct Accounts {
    flows: BTreeMap<Source, Flow>,
}

/// What caused a flow, and on which account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    user_id: String,
    kind: String,
    source_type: String,
    source_id: String,
}

#[derive(Debug, Clone)]
struct Flow {
    amount: i64,
    /// The credit that it takes back.
    of: Option<Source>,
}

impl Source {
    fn new(user_id: &str, kind: &str, source_type: &str, source_id: &str) -> Self {
        Self {
            user_id: user_id.to_owned(),
            kind: kind.to_owned(),
            source_type: source_type.to_owned(),
            source_id: source_id.to_owned(),
        }
    }

    fn token(&self) -> [&str; 5] {
        [
            "flow",
            &self.user_id,
            &self.kind,
            &self.source_type,
            &self.source_id,
        ]
    }

    fn json(&self) -> Value {
        json!({
            "user_id": self.user_id,
            "kind": self.kind,
            "source_type": self.source_type,
            "source_id": self.source_id,
        })
    }
}

impl Accounts {
    pub(super) fn snapshot(&self) -> BTreeMap<String, BTreeMap<String, AccountState>> {
        let mut accounts = BTreeMap::<String, BTreeMap<String, AccountState>>::new();
        for source in self.flows.keys() {
            let state = AccountState {
                balance: self.balance(source),
            };
            let of_user = accounts.entry(source.user_id.clone()).or_default();
            of_user.insert(source.kind.clone(), state);
        }
        accounts
    }

    pub(super) fn decide(&mut self, event_type: &str, data: &Value) -> Option<Said> {
        let user_id = text(data, "user_id")?;
        match event_type {
            "order.completed" => {
                let source = Source::new(user_id, "POINTS", "ORDER", text(data, "order_id")?);
                Some(self.add("account.credited", source, points(data)?, None))
            }
            "order.refunded" => self.refunded(user_id, data),
            "account.credit" => {
                let source = named(user_id, data)?;
                Some(self.add("account.credited", source, int(data, "amount")?, None))
            }
            "account.debit" => {
                let source = named(user_id, data)?;
                Some(self.add("account.debited", source, -int(data, "amount")?, None))
            }
            "account.reverse" => self.reverse(user_id, data),
            _ => None,
        }
    }

    /// Takes points back so that no more are left than what is still paid is worth.
    fn refunded(&mut self, user_id: &str, data: &Value) -> Option<Said> {
        if !data.get("completed")?.as_bool()? {
            return Some(Said::applied());
        }
        let source = Source::new(user_id, "POINTS", "REFUND", &refund_source(data)?);
        let of = Source::new(user_id, "POINTS", "ORDER", text(data, "order_id")?);
        if self.flows.contains_key(&source) {
            return Some(Verdict::Duplicate.into());
        }
        let Some(left) = self.left(&of) else {
            return Some(Said::parked(&of.token()));
        };
        let back = (left - points(data)?).max(0);
        Some(self.add("account.reversed", source, -back, Some(of)))
    }

    fn reverse(&mut self, user_id: &str, data: &Value) -> Option<Said> {
        let source = named(user_id, data)?;
        let of_type = text(data, "of_source_type")?;
        let of = Source::new(user_id, &source.kind, of_type, text(data, "of_source_id")?);
        let amount = int(data, "amount");
        if let Some(flow) = self.flows.get(&source) {
            let same = flow.of == Some(of) && amount.is_none_or(|it| flow.amount == -it);
            return Some(if same {
                Verdict::Duplicate.into()
            } else {
                Verdict::Conflict.into()
            });
        }
        let Some(left) = self.left(&of) else {
            return Some(Said::parked(&of.token()));
        };
        let amount = amount.unwrap_or(left);
        if left <= 0 || amount > left {
            return Some(no(&source, "nothing_to_reverse"));
        }
        Some(self.add("account.reversed", source, -amount, Some(of)))
    }

    /// Writes a flow, unless it is there already or the account would go below zero.
    fn add(
        &mut self,
        event_type: &'static str,
        source: Source,
        amount: i64,
        of: Option<Source>,
    ) -> Said {
        if let Some(known) = self.flows.get(&source) {
            return if known.amount == amount && known.of == of {
                Verdict::Duplicate.into()
            } else {
                Verdict::Conflict.into()
            };
        }
        let Some(balance) = self.balance(&source).checked_add(amount) else {
            return no(&source, "amount_overflow");
        };
        if balance < 0 {
            return no(&source, "insufficient_balance");
        }
        let mut moved = source.json();
        moved["amount"] = json!(amount);
        moved["balance"] = json!(balance);
        let said = Said::applied()
            .emit(event_type, moved)
            .reach(&source.token());
        self.flows.insert(source, Flow { amount, of });
        said
    }

    /// What has not been taken back of a flow; `None` if there is no such flow.
    fn left(&self, of: &Source) -> Option<i64> {
        let credited = self.flows.get(of)?.amount;
        let reversals = self.flows.values().filter(|it| it.of.as_ref() == Some(of));
        Some(credited + reversals.map(|it| it.amount).sum::<i64>())
    }

    /// What is on the account of a source.
    fn balance(&self, source: &Source) -> i64 {
        let same = |it: &Source| it.user_id == source.user_id && it.kind == source.kind;
        let flows = self.flows.iter().filter(|(it, _)| same(it));
        flows.map(|(_, flow)| flow.amount).sum()
    }
}

/// The source id of the reversal that follows a refund.
pub(super) fn refund_source(data: &Value) -> Option<String> {
    let parts = ["order_id", "provider", "refund_no"];
    let parts: Option<Vec<_>> = parts.iter().map(|name| text(data, name)).collect();
    Some(joined(&parts?, "/"))
}

fn named(user_id: &str, data: &Value) -> Option<Source> {
    let (kind, source_type) = (text(data, "kind")?, text(data, "source_type")?);
    let source_id = text(data, "source_id")?;
    Some(Source::new(user_id, kind, source_type, source_id))
}

fn no(source: &Source, code: &'static str) -> Said {
    let mut rejected = source.json();
    rejected["reason"] = json!(code);
    Said::rejected(code).emit("account.rejected", rejected)
}

/// One for each whole major unit that is paid and not refunded.
fn points(data: &Value) -> Option<i64> {
    let kept = int(data, "paid_minor")? - int(data, "refunded_minor")?;
    Some(kept.div_euclid(minor_per_major(text(data, "currency")?)))
}

/// ISO 4217: two digits, but for these.
fn minor_per_major(currency: &str) -> i64 {
    match currency {
        "BIF" | "CLP" | "DJF" | "GNF" | "ISK" | "JPY" | "KMF" | "KRW" | "PYG" | "RWF" | "UGX"
        | "UYI" | "VND" | "VUV" | "XAF" | "XOF" | "XPF" => 1,
        "BHD" | "IQD" | "JOD" | "KWD" | "LYD" | "OMR" | "TND" => 1_000,
        "CLF" | "UYW" => 10_000,
        _ => 100,
    }
}
