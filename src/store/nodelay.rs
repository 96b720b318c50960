//! Sends what is written at once.
//!
//! The driver leaves Nagle's algorithm on and writes a large statement in parts, of which the last
//! then waits for the server's acknowledgement of those before, 40 ms. It gives no access to its
//! socket; the kernel does, by the number that the socket has among this process's files.

use rustix::fd::OwnedFd;
use rustix::net::sockopt::set_tcp_nodelay;
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
        let copy = pidfd_getfd(&this_process, number, PidfdGetfdFlags::empty());
        let Ok(copy) = copy else { continue };
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
    use rustix::net::sockopt::tcp_nodelay;
    use std::net::{TcpListener, TcpStream};

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

    fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }
}
