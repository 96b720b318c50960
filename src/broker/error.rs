//! Errors of a broker.

use crate::domain::RoleName;

/// Shorthand for results of a broker.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong at the broker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The broker is away. It costs time, never an attempt.
    #[error("the broker is not available: {0}")]
    Unavailable(String),
    /// The topology has no queue for the role.
    #[error("there is no queue for role {0}")]
    UnknownQueue(RoleName),
    /// The broker cannot be used as it is configured.
    #[error(transparent)]
    Setup(#[from] Setup),
}

/// Why a broker cannot be used: one sentence that names it and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Setup {
    /// The URL cannot be used.
    #[error("broker.url is {at}: {problem}")]
    Url {
        /// The URL, password masked.
        at: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No server answers.
    #[error("nothing answers at {at} ({problem}), start the broker or change broker.url")]
    Unreachable {
        /// Which server, password masked.
        at: String,
        /// What the system says.
        problem: String,
    },
    /// Something else than a broker answers.
    #[error("what answers at {at} does not speak AMQP 0-9-1 ({problem}), change broker.url")]
    NotABroker {
        /// Which server, password masked.
        at: String,
        /// What it did instead.
        problem: String,
    },
    /// TLS to the server cannot be set up.
    #[error(
        "no TLS to the broker at {at}: {problem}, correct its certificate, broker.ca_file or broker.url"
    )]
    Tls {
        /// Which server, password masked.
        at: String,
        /// What went wrong.
        problem: String,
    },
    /// The file with the authority's certificates cannot be used.
    #[error("broker.ca_file is {path}: {problem}")]
    CaFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The server does not let this user in.
    #[error(
        "the broker at {at} does not let user {user} in, correct user and password in broker.url"
    )]
    Login {
        /// Which server, password masked.
        at: String,
        /// Which user.
        user: String,
    },
    /// There is no such virtual host, or the user may not use it.
    #[error(
        "the broker at {at} does not open virtual host `{vhost}` ({problem}), create it with `rabbitmqctl add_vhost`, \
         give the user access with `rabbitmqctl set_permissions`, or correct the path of broker.url, which is /%2f for \
         the default virtual host"
    )]
    VirtualHost {
        /// Which server, password masked.
        at: String,
        /// Which virtual host.
        vhost: String,
        /// What the server says.
        problem: String,
    },
    /// The user may not do what is needed.
    #[error(
        "the broker at {at} refuses what is needed ({problem}), give the user the right with `rabbitmqctl set_permissions`"
    )]
    Permission {
        /// Which server, password masked.
        at: String,
        /// What the server refuses.
        problem: String,
    },
    /// The server is older than this program can use.
    #[error("the broker at {at} is too old ({problem}), use RabbitMQ {needed} or newer")]
    ServerTooOld {
        /// Which server, password masked.
        at: String,
        /// What it does not know.
        problem: &'static str,
        /// The oldest version that will do.
        needed: &'static str,
    },
    /// Something that messages need on their way is not there.
    #[error("there is no {what} {name} at {at}, create it with `orderonce migrate`")]
    Missing {
        /// Exchange or queue.
        what: &'static str,
        /// Its name.
        name: String,
        /// At which server, password masked.
        at: String,
    },
    /// Something is there already, made in another way.
    #[error(
        "{what} {name} at {at} has {argument} {found}, expected {expected}, make the configuration fit, or delete the \
         {what} once it is empty and run `orderonce migrate`"
    )]
    Mismatch {
        /// Exchange or queue.
        what: &'static str,
        /// Its name.
        name: String,
        /// At which server, password masked.
        at: String,
        /// The argument that differs.
        argument: String,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// A queue drops what reaches its delivery limit.
    #[error(
        "queue {name} at {at} has no dead-letter exchange and drops each message at the delivery limit, delete the queue \
         once it is empty and run `orderonce migrate`"
    )]
    NoDeadLetters {
        /// The queue.
        name: String,
        /// At which server, password masked.
        at: String,
    },
    /// Two queues would have one name.
    #[error("two queues would be named {name}, rename the role")]
    SameName {
        /// The name.
        name: String,
    },
    /// The server refuses for another reason.
    #[error("the broker at {at} refuses: {problem}, correct it there or change broker.url")]
    Refused {
        /// Which server, password masked.
        at: String,
        /// What the server says.
        problem: String,
    },
}
