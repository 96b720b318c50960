//! `account`, `account_flow`.

use super::fixture::{Fresh, NOW, assert_conflict, assert_refused};
use orderonce::domain::account::{Account, AccountFlow, AccountId, Source};
use orderonce::domain::{AccountKind, SourceId, SourceType, UserId};
use orderonce::store::{AccountUpdate, CreditState};

fn id(user: &str, kind: &str) -> AccountId {
    AccountId {
        user_id: UserId::new(user).unwrap(),
        kind: AccountKind::new(kind).unwrap(),
    }
}

fn source(kind: &str, id: &str) -> Source {
    Source {
        source_type: SourceType::new(kind).unwrap(),
        source_id: SourceId::new(id).unwrap(),
    }
}

fn account(user: &str, balance: i64, version: i64) -> Account {
    Account {
        id: id(user, "POINTS"),
        balance,
        version,
    }
}

fn flow(user: &str, kind: &str, number: &str, amount: i64) -> AccountFlow {
    AccountFlow {
        account: id(user, "POINTS"),
        source: source(kind, number),
        reverses: None,
        amount,
        balance_after: amount.max(0),
    }
}

pub(super) async fn what_was_inserted_is_loaded(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let (a, b) = (account("A", 139, 1), account("B", i64::MAX, 7));
    tx.insert_accounts(NOW, &[&a, &b]).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    let ids = [&b.id, &a.id, &id("A", "BALANCE"), &id("C", "POINTS"), &a.id];
    let mut loaded = tx.load_accounts(&ids).await.unwrap();
    loaded.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(loaded, [a, b]);
}

pub(super) async fn an_account_is_inserted_once(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_accounts(NOW, &[&account("A", 1, 1)])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    let again = [&account("B", 1, 1), &account("A", 1, 1)];
    assert_conflict(tx.insert_accounts(NOW, &again).await);
}

pub(super) async fn a_balance_of_another_version_is_not_written(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_accounts(NOW, &[&account("A", 1, 1)])
        .await
        .unwrap();
    let new = account("A", 2, 2);
    let update = |was_version| AccountUpdate {
        was_version,
        account: &new,
    };
    assert_conflict(tx.update_accounts(NOW, &[update(2)]).await);
    tx.update_accounts(NOW, &[update(1)]).await.unwrap();
    assert_conflict(tx.update_accounts(NOW, &[update(1)]).await);
    assert_eq!(tx.load_accounts(&[&new.id]).await.unwrap(), [new]);
}

pub(super) async fn a_balance_below_zero_is_refused(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.savepoint().await.unwrap();
    assert_refused(tx.insert_accounts(NOW, &[&account("A", -1, 1)]).await);
    tx.rollback_to_savepoint().await.unwrap();
    let below = AccountFlow {
        balance_after: -1,
        ..flow("A", "ORDER", "1", -1)
    };
    assert_refused(tx.insert_account_flows(NOW, &[below]).await);
}

pub(super) async fn a_source_moves_an_account_once(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_account_flows(NOW, &[flow("A", "ORDER", "1", 10)])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    let again = [flow("A", "ORDER", "2", 10), flow("A", "ORDER", "1", 20)];
    assert_conflict(tx.insert_account_flows(NOW, &again).await);
    tx.rollback().await.unwrap();
    assert_eq!(fresh.number("SELECT count(*) FROM account_flow").await, 1);
}

pub(super) async fn the_same_source_moves_two_accounts(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let balance = AccountFlow {
        account: id("A", "BALANCE"),
        ..flow("A", "ORDER", "1", 10)
    };
    let flows = [
        flow("A", "ORDER", "1", 10),
        flow("B", "ORDER", "1", 10),
        balance,
    ];
    tx.insert_account_flows(NOW, &flows).await.unwrap();
}

pub(super) async fn a_credit_says_what_was_taken_back_of_it(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let credit = flow("A", "ORDER", "1", 100);
    let other = flow("B", "ORDER", "1", 100);
    let reversal = |number, amount| AccountFlow {
        reverses: Some(credit.source.clone()),
        ..flow("A", "REFUND", number, amount)
    };
    let (first, second) = (reversal("R1", -30), reversal("R2", -5));
    let flows = [credit.clone(), other.clone(), first.clone(), second];
    tx.insert_account_flows(NOW, &flows).await.unwrap();
    let absent = source("ORDER", "2");
    let sources = [
        (&credit.account, &credit.source),
        (&other.account, &other.source),
        (&first.account, &first.source),
        (&credit.account, &absent),
    ];
    let mut loaded = tx.load_account_flows(&sources).await.unwrap();
    loaded.sort_by_key(|state| (state.credit.account.clone(), state.credit.source.clone()));
    let expected = [(credit.clone(), 35), (first, 0), (other, 0)];
    let expected = expected.map(|(credit, reversed)| CreditState { credit, reversed });
    assert_eq!(loaded, expected);
}
