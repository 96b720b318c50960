//! Sends what is written at once.
//!
//! The driver leaves Nagle's algorithm on and writes a large statement in parts, of which the last
//! then waits for the server's acknowledgement of those before, 40 ms. It gives no access to its
//! socket; the kernel does, by the number that the socket has among this process's files.
//!
//! A copy of a file's descriptor must not be closed: that would end all locks that the process has on the
//! file by `fcntl`, those of SQLite among them, and another process would take away the log under it.
//! Sockets have no such locks. So nothing else is copied; and what has become something else in the
//! moment between the look and the copy is left open.

use rustix::fd::OwnedFd;
use rustix::net::sockopt::{set_tcp_nodelay, socket_type};
use rustix::net::{SocketAddrAny, getpeername};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::net::SocketAddr;

/// Turns Nagle's algorithm off on this process's connections to a port. Where the kernel does not
/// allow it, they stay as they are, which costs time and nothing else.
pub(super) fn send_at_once(port: u16) {
    let Ok(this_process) = pidfd_open(getpid(), PidfdFlags::empty()) else {
        return;
    };
    let Ok(files) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    for file in files.flatten() {
        let number = file.file_name().to_string_lossy().parse();
        let Ok(number) = number else { continue };
        let target = std::fs::read_link(file.path());
        let is_socket = target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
        if !is_socket {
            continue;
        }
        let copy = pidfd_getfd(&this_process, number, PidfdGetfdFlags::empty());
        let Ok(copy) = copy else { continue };
        if socket_type(&copy).is_err() {
            std::mem::forget(copy);
            continue;
        }
        if peer_port(&copy) == Some(port) {
            // What is no TCP socket has no such option.
            let _ = set_tcp_nodelay(&copy, true);
        }
    }
}

/// The port at the other end, if the file is a connection over IP.
fn peer_port(file: &OwnedFd) -> Option<u16> {
    let peer: SocketAddrAny = getpeername(file).ok()??;
    SocketAddr::try_from(peer).ok().map(|peer| peer.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, fcntl_lock};
    use rustix::net::sockopt::tcp_nodelay;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn connections_to_the_port_send_at_once_and_no_others() {
        let (one, other) = (listener(), listener());
        let port = one.local_addr().unwrap().port();
        let to_one = TcpStream::connect(one.local_addr().unwrap()).unwrap();
        let to_other = TcpStream::connect(other.local_addr().unwrap()).unwrap();
        send_at_once(port);
        assert!(tcp_nodelay(&to_one).unwrap());
        assert!(!tcp_nodelay(&to_other).unwrap());
    }

    #[test]
    fn locks_on_files_stay() {
        let server = listener();
        let port = server.local_addr().unwrap().port();
        let _client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let file = tempfile::tempfile().unwrap();
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let inode = format!(":{} ", file.metadata().unwrap().ino());
        let is_locked = || {
            std::fs::read_to_string("/proc/locks")
                .unwrap()
                .contains(&inode)
        };
        assert!(is_locked());
        send_at_once(port);
        assert!(is_locked());
    }

    fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }
}
