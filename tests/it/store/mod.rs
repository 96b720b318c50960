//! Conformance of the stores: every test below runs against every adapter.
//!
//! `store_suite!` stamps the tests; the next adapter needs one line and a function that makes a
//! fresh store. A test that is written and not stamped is dead code, which the compiler reports.

mod accounts;
mod backlog;
mod callbacks;
mod claims;
mod dead_letters;
pub(crate) mod fixture;
mod holding;
mod inventory;
mod open;
mod open_mysql;
mod open_postgres;
mod orders;
mod outbox;
mod parking;
mod repairs;
mod retention;
mod statements;
mod text;
mod transactions;
mod views;
mod waiting;

macro_rules! stamp {
    ($fresh:path; $($subject:ident: $($test:ident)*;)*) => {$(
        mod $subject {
            $(
                #[tokio::test]
                async fn $test() {
                    let fresh = $fresh().await;
                    crate::store::$subject::$test(&fresh).await;
                    fresh.finish().await;
                }
            )*
        }
    )*};
}

macro_rules! store_suite {
    ($adapter:ident, $fresh:path) => {
        mod $adapter {
            stamp! { $fresh;
                claims:
                    a_new_key_is_fresh
                    a_key_is_fresh_once
                    answers_stand_in_the_order_of_the_claims
                    a_role_does_not_see_the_keys_of_another
                    a_parked_claim_is_open_and_says_what_it_awaits
                    a_woken_claim_is_open_and_says_so
                    a_dead_claim_is_open
                    every_other_outcome_is_done
                    a_parked_claim_without_its_parked_event_is_open
                    concluding_from_another_outcome_is_a_conflict
                    one_lost_guard_refuses_the_whole_set
                    an_unclaimed_key_is_fresh_again
                    a_claim_keeps_the_time_of_its_transaction;
                backlog:
                    nothing_waits_in_an_empty_store
                    what_waits_is_counted_and_the_oldest_dated
                    connections_are_counted_while_they_are_in_use;
                parking:
                    a_token_wakes_what_awaits_it_and_nothing_else
                    waking_goes_in_order_of_parking
                    a_woken_event_is_woken_once
                    an_event_parked_again_awaits_the_new_token_and_keeps_its_deadline
                    an_event_parked_again_after_it_was_woken_can_be_woken_again
                    an_unparked_event_is_not_woken
                    overdue_events_are_taken_once_oldest_first
                    a_woken_event_that_never_arrived_is_overdue_too;
                dead_letters:
                    the_same_letter_is_kept_once
                    another_role_reason_or_byte_is_another_letter
                    a_replayed_letter_that_dies_again_is_dead_with_one_death_more
                    a_discarded_letter_stays_discarded
                    marking_from_another_status_is_a_conflict
                    any_bytes_are_kept;
                callbacks:
                    what_came_is_shown_as_it_came_youngest_first
                    the_oldest_are_removed_after_their_time;
                views:
                    an_order_is_read_with_all_that_belongs_to_it
                    stock_and_accounts_are_read
                    the_answers_to_requests_are_read_and_those_of_roles_are_not;
                orders:
                    what_was_inserted_is_loaded
                    an_order_is_inserted_once_even_by_another_transaction
                    an_order_is_loaded_once_however_often_it_is_asked_for
                    an_update_writes_the_whole_row
                    an_update_of_another_version_is_a_conflict
                    an_update_of_another_status_is_a_conflict
                    one_lost_guard_leaves_all_orders_as_they_were
                    a_version_has_one_step
                    notes_are_found_by_order_and_steps_are_none
                    a_line_number_is_used_once
                    a_trade_number_pays_once_whatever_the_order
                    an_order_accepts_one_payment
                    payments_are_found_by_order_and_by_number
                    refunds_are_found_by_order_and_by_number
                    a_refund_moves_from_the_status_that_was_read_only
                    amounts_reach_the_ends_of_their_range;
                inventory:
                    what_was_inserted_is_loaded
                    stock_of_another_version_is_not_written
                    one_lost_guard_leaves_all_stock_as_it_was
                    stock_below_zero_is_refused
                    a_reservation_is_inserted_once
                    a_reservation_moves_from_what_was_read_only
                    a_flow_is_inserted_once_even_by_another_transaction
                    flows_are_found_by_order_and_by_id
                    a_sku_has_one_row
                    a_thousand_rows_go_in_and_come_out;
                accounts:
                    what_was_inserted_is_loaded
                    an_account_is_inserted_once
                    a_balance_of_another_version_is_not_written
                    a_balance_below_zero_is_refused
                    a_source_moves_an_account_once
                    the_same_source_moves_two_accounts
                    a_credit_says_what_was_taken_back_of_it;
                outbox:
                    rows_leave_in_the_order_in_which_they_were_written
                    the_head_is_no_longer_than_asked_for
                    a_postponed_row_holds_back_the_younger_ones_of_its_aggregate_only
                    a_postponed_row_comes_back_with_what_the_broker_said
                    what_the_broker_says_is_cut_at_500_characters
                    a_number_is_not_used_again
                    depth_counts_and_dates_the_oldest
                    any_bytes_are_kept
                    a_lease_is_held_by_one
                    a_renewed_lease_keeps_its_fence
                    a_lease_that_ended_can_be_taken_and_fences_off_its_holder
                    a_lease_given_back_can_be_taken_at_once
                    a_lease_given_back_late_does_not_end_the_next_one
                    a_transaction_knows_whether_it_holds_a_lease
                    a_lease_that_a_transaction_holds_is_taken_after_it;
                repairs:
                    an_event_that_was_missed_is_woken_once_and_that_is_recorded
                    what_awaits_a_reservation_or_a_flow_is_woken_too
                    an_event_whose_order_has_not_come_so_far_stays_parked
                    an_event_that_was_woken_meanwhile_is_lost
                    a_row_that_waits_is_due_at_once_and_that_is_recorded
                    a_row_that_failed_again_meanwhile_is_lost
                    a_row_that_waits_for_a_short_time_is_left_alone
                    a_lease_that_lasts_too_long_ends_and_is_taken_with_a_new_fence
                    a_lease_that_was_renewed_meanwhile_is_lost
                    a_wake_waits_for_the_decision_that_has_the_order
                    what_is_no_longer_true_is_not_woken
                    the_hash_of_another_order_wakes_nothing
                    two_repairs_at_once_repair_once
                    a_dry_run_leaves_everything_as_it_was;
                holding:
                    a_row_that_was_taken_back_can_be_held
                    holding_a_row_leaves_nothing_behind;
                retention:
                    a_claim_expires_once_it_is_older_than_its_life
                    the_oldest_expire_first_and_the_next_step_goes_on_from_there
                    what_may_still_come_to_something_does_not_expire
                    an_expired_claim_still_stops_its_copies
                    a_claim_that_is_concluded_anew_lives_anew
                    an_expired_claim_goes_after_its_time_in_the_archive
                    what_is_kept_is_counted_and_dated
                    a_claim_that_somebody_holds_is_passed_by
                    recent_keys_are_those_that_a_gate_was_told_of_youngest_first;
                text:
                    ids_are_compared_byte_by_byte
                    keys_are_compared_byte_by_byte
                    ids_of_512_bytes_are_kept
                    quotes_emoji_and_json_are_kept
                    nul_is_kept;
                transactions:
                    a_dropped_transaction_takes_claim_and_effects_along
                    a_rolled_back_transaction_takes_claim_and_effects_along
                    a_committed_transaction_is_seen_by_the_next
                    a_failed_guard_leaves_nothing_behind
                    a_savepoint_takes_back_only_what_came_after_it
                    a_released_savepoint_keeps_what_was_written
                    savepoints_nest
                    statements_are_counted_with_begin_and_commit
                    empty_sets_write_nothing
                    a_team_can_use_the_connection
                    the_clock_moves_on
                    a_store_that_is_open_answers;
                waiting:
                    a_claim_is_done_if_its_rival_commits
                    a_claim_is_fresh_if_its_rival_rolls_back
                    of_two_copies_of_an_open_claim_one_resumes
                    an_order_is_changed_by_one_at_a_time
                    a_reservation_is_changed_by_one_at_a_time
                    stock_is_changed_by_one_at_a_time
                    an_account_is_changed_by_one_at_a_time
                    a_refund_is_changed_by_one_at_a_time
                    an_absent_order_is_held
                    an_absent_reservation_is_held
                    an_absent_account_is_held
                    an_order_that_appears_is_not_held
                    a_reservation_that_appears_is_not_held
                    an_account_that_appears_is_not_held;
            }
        }
    };
}

store_suite!(sqlite, crate::store::fixture::sqlite::fresh);
store_suite!(postgres, crate::store::fixture::postgres::fresh);
store_suite!(mariadb, crate::store::fixture::mariadb::fresh);
