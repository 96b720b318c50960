//! The account role: points and balances.

use super::role::decode_typed;
use super::{Role, Ruling};
use crate::domain::account::{
    self, Account, AccountFlow, AccountId, AccountState, AccountWrites, PointsRule, Source,
    account_of, reversed_by, source_of,
};
use crate::domain::event::AccountEvent;
use crate::domain::{Fingerprint, Key, RoleName, Timestamp, Verdict};
use crate::message::{self, Envelope, Malformed};
use crate::store::{self, AccountUpdate, CreditState, Tx};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Consumes `order.completed`, `order.refunded`, `account.credit`, `debit` and `reverse`.
#[derive(Debug, Clone)]
pub struct AccountRole {
    /// Which points an order earns.
    pub points: PointsRule,
}

/// Rows by account and source, with what was read of each as its guard.
#[derive(Debug, Default)]
pub struct AccountRows {
    accounts: BTreeMap<AccountId, Account>,
    /// Versions of the account rows that were read.
    read: HashMap<AccountId, i64>,
    flows: HashMap<(AccountId, Source), CreditState>,
    new_flows: Vec<AccountFlow>,
    /// Accounts that an event waits for a flow of.
    awaited: BTreeSet<AccountId>,
}

#[async_trait]
impl Role for AccountRole {
    type Event = AccountEvent;
    type Rows = AccountRows;

    fn name(&self) -> RoleName {
        RoleName::ACCOUNT
    }

    fn decode(&self, envelope: &Envelope<'_>) -> Result<Vec<AccountEvent>, Malformed> {
        decode_typed(envelope, &self.name(), message::account_event)
    }

    fn key(&self, event: &AccountEvent) -> Key {
        account::key(event, &self.points)
    }

    fn fingerprint(&self, event: &AccountEvent) -> Fingerprint {
        event.fingerprint()
    }

    fn subject<'e>(&self, event: &'e AccountEvent) -> &'e str {
        event.subject()
    }

    async fn load(&self, tx: &mut dyn Tx, events: &[&AccountEvent]) -> store::Result<AccountRows> {
        let mut sources = Vec::with_capacity(events.len() * 2);
        for event in events {
            let account = account_of(event, &self.points);
            let reversed = reversed_by(event);
            sources.extend(reversed.map(|source| (account.clone(), source)));
            sources.push((account, source_of(event)));
        }
        sources.sort_unstable();
        sources.dedup();
        let mut accounts: Vec<_> = sources.iter().map(|(account, _)| account).collect();
        accounts.dedup();

        let mut rows = AccountRows::default();
        for account in tx.load_accounts(&accounts).await? {
            rows.read.insert(account.id.clone(), account.version);
            rows.accounts.insert(account.id.clone(), account);
        }
        let sources: Vec<_> = sources.iter().map(|(a, s)| (a, s)).collect();
        for state in tx.load_account_flows(&sources).await? {
            let source = (state.credit.account.clone(), state.credit.source.clone());
            rows.flows.insert(source, state);
        }
        Ok(rows)
    }

    fn decide(
        &self,
        rows: &mut AccountRows,
        event: &AccountEvent,
        _key: &Key,
        _now: Timestamp,
    ) -> Ruling {
        let account = account_of(event, &self.points);
        let own = rows.flows.get(&(account.clone(), source_of(event)));
        let reversed = reversed_by(event).map(|source| (account.clone(), source));
        let credit = reversed.and_then(|source| rows.flows.get(&source));
        let state = AccountState {
            account: rows.accounts.get(&account),
            own: own.map(|state| &state.credit),
            credit: credit.map(|state| &state.credit),
            reversed: credit.map_or(0, |state| state.reversed),
        };
        let decision = account::decide(state, event, &self.points);
        let ruling = Ruling::from(&decision);
        match decision.verdict {
            Verdict::Applied => rows.apply(decision.writes),
            Verdict::Parked(_) => drop(rows.awaited.insert(account)),
            Verdict::Duplicate | Verdict::Conflict | Verdict::Stale | Verdict::Rejected(_) => {}
        }
        ruling
    }

    async fn write(&self, tx: &mut dyn Tx, rows: AccountRows, now: Timestamp) -> store::Result<()> {
        let (mut inserts, mut updates) = (Vec::new(), Vec::new());
        for account in rows.accounts.values() {
            match rows.read.get(&account.id) {
                None => inserts.push(account),
                Some(&was_version) if was_version != account.version => {
                    updates.push(AccountUpdate {
                        was_version,
                        account,
                    });
                }
                Some(_) => {}
            }
        }
        let absent = rows.awaited.iter();
        let absent = absent.filter(|id| !rows.accounts.contains_key(*id));
        tx.hold_absent_accounts(&absent.collect::<Vec<_>>()).await?;
        tx.insert_account_flows(now, &rows.new_flows).await?;
        tx.insert_accounts(now, &inserts).await?;
        tx.update_accounts(now, &updates).await
    }
}

impl AccountRows {
    fn apply(&mut self, writes: AccountWrites) {
        let Some(flow) = writes.flow else {
            return;
        };
        let account = self
            .accounts
            .entry(flow.account.clone())
            .or_insert_with(|| Account {
                id: flow.account.clone(),
                balance: 0,
                version: 0,
            });
        account.balance = flow.balance_after;
        account.version += 1;
        if let Some(credit) = &flow.reverses {
            let credit = (flow.account.clone(), credit.clone());
            if let Some(state) = self.flows.get_mut(&credit) {
                state.reversed -= flow.amount;
            }
        }
        let state = CreditState {
            credit: flow.clone(),
            reversed: 0,
        };
        self.flows
            .insert((flow.account.clone(), flow.source.clone()), state);
        self.new_flows.push(flow);
    }
}
