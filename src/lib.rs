//! An order processor for at-least-once message queues in which every effect happens once.
//!
//! Delivery is at least once. Effects are once. Nothing is dropped silently.
//!
//! ```
//! use orderonce::domain::order::{Context, OrderState, OrderStatus, decide};
//! use orderonce::domain::{EventType, Timestamp};
//! use orderonce::message::{Envelope, Limits, order_event};
//! use std::time::Duration;
//!
//! let message = br#"{"specversion": "1.0", "id": "m1", "source": "shop", "type": "order.create",
//!     "subject": "O1", "data": {"order_id": "O1", "user_id": "U1", "currency": "GBP",
//!     "total_minor": 510, "lines": [{"sku_id": "85123A", "qty": 2, "unit_price_minor": 255}]}}"#;
//! let envelope = Envelope::parse(message, &Limits::default())?;
//! let event = order_event(EventType::OrderCreate, &envelope.items()?[0]).expect("an order event")?;
//! assert_eq!(event.key().as_str(), "O1/order.create");
//!
//! let context = Context {
//!     now: Timestamp::parse_rfc3339("2010-12-01T08:26:00Z").expect("a time"),
//!     pay_timeout: Duration::from_secs(1800),
//!     remind_before: None,
//!     number_taken: false,
//!     noted: false,
//! };
//! let decision = decide(&OrderState::default(), &event, &context);
//! let order = decision.writes.order.expect("a new order");
//! assert_eq!(order.status, OrderStatus::WaitPay);
//! assert_eq!(decision.emits[0].event_type(), EventType::OrderCreated);
//! # Ok::<(), orderonce::message::Malformed>(())
//! ```
//!
//! Arrows point down only: [`cli`] calls [`ops`], [`ops`] runs [`worker`], which brings together
//! [`store`], [`broker`] and [`gate`]; all speak the words of [`domain`], and tell what they do by way of
//! [`telemetry`]. Start reading at
//! [`worker::batch`], the path of a batch in nine steps. A role of your own is a [`worker::Role`], or
//! a plain function in a [`worker::handler::HandlerRole`].

pub mod domain;
pub mod message;

pub mod broker;
pub mod gate;
pub mod store;

pub mod worker;

pub mod cli;
pub mod http;
pub mod ops;

pub mod config;
pub mod telemetry;

#[cfg(feature = "testkit")]
pub mod testkit;
