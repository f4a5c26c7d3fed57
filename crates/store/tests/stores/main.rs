//! One test suite for every store: in memory, in a file, and in etcd.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test stops at the first surprise"
)]
#![allow(unreachable_pub, clippy::unused_async, reason = "the stores have the same functions")]

mod administration;
mod crash;
mod power;
mod servers;
mod suite;
mod support;
mod tls;

use support::World;

/// Runs each test of the suite against each store.
macro_rules! for_each_store {
    ($($module:ident::$test:ident,)*) => {
        mod memory {
            use super::*;
            $(#[tokio::test] async fn $test() { run(World::memory(suite::HISTORY).await, suite::$module::$test).await; })*
        }
        mod durable {
            use super::*;
            $(#[tokio::test] async fn $test() { run(World::durable(suite::HISTORY).await, suite::$module::$test).await; })*
        }
        mod etcd {
            use super::*;
            $(#[tokio::test] async fn $test() { run(World::etcd(suite::HISTORY).await, suite::$module::$test).await; })*
        }
    };
}

async fn run(world: Option<World>, test: impl AsyncFnOnce(World)) {
    if let Some(world) = world {
        test(world).await;
    }
}

for_each_store! {
    conditions::a_condition_that_does_not_hold_is_a_conflict_at_its_step,
    conditions::a_transaction_is_done_whole_or_not_at_all,
    conditions::a_requirement_writes_nothing,
    conditions::the_revision_of_another_step_does_not_meet_a_condition,
    conditions::objects_may_be_large,
    conditions::a_transaction_of_forty_steps_is_taken,
    conditions::a_transaction_may_have_as_many_steps_as_the_store_says,
    history::revisions_increase_within_a_transaction,
    history::what_is_too_old_or_unknown_is_expired,
    history::a_follower_is_woken_for_its_resource,
    history::a_restart_keeps_objects_and_revisions,
    history::counters_tell_what_happened,
    random::any_order_of_transactions_is_as_the_model_has_it,
    concurrent::no_increment_is_lost_and_every_change_is_seen_once,
    concurrent::exactly_one_creates_a_key,
    concurrent::accepted_writes_are_the_latest,
    concurrent::a_write_is_carried_out_if_its_future_is_dropped,
}
