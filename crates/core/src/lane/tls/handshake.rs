//! Owns the handshake of one lane: rustls decides the messages, within one time limit.

use std::io::IoSlice;
use std::time::Instant;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error as TlsError, ExtractedSecrets};

use super::records::{HEADER_BYTES, parse_header};
use crate::error::{Error, Result};
use crate::lane::stream::Stream;
use crate::lane::wire::{Alive, retry};
use crate::limits::LANE_HANDSHAKE_BYTES_MAX;

/// Source of the keys that follow each key update.
pub enum NextKeys {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

type NumberedSecrets = (u64, ConnectionTrafficSecrets);

impl NextKeys {
    /// Returns the next sealing key.
    pub fn sealing(&mut self) -> std::result::Result<NumberedSecrets, TlsError> {
        match self {
            Self::Client(keys) => keys.update_tx_secret(),
            Self::Server(keys) => keys.update_tx_secret(),
        }
    }

    /// Returns the next opening key.
    pub fn opening(&mut self) -> std::result::Result<NumberedSecrets, TlsError> {
        match self {
            Self::Client(keys) => keys.update_rx_secret(),
            Self::Server(keys) => keys.update_rx_secret(),
        }
    }
}

/// One end of a handshake.
pub trait Peer {
    type Data;

    fn process<'c, 'i>(
        &'c mut self,
        received: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn finish(self) -> std::result::Result<(ExtractedSecrets, NextKeys), TlsError>;
}

impl Peer for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        received: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(received)
    }

    fn finish(self) -> std::result::Result<(ExtractedSecrets, NextKeys), TlsError> {
        let (secrets, keys) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, NextKeys::Client(keys)))
    }
}

impl Peer for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        received: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(received)
    }

    fn finish(self) -> std::result::Result<(ExtractedSecrets, NextKeys), TlsError> {
        let (secrets, keys) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, NextKeys::Server(keys)))
    }
}

/// Next step of a handshake.
enum Step {
    Again,
    Receive,
    Finish,
}

/// One connection during its handshake.
struct Line<'a> {
    stream: &'a dyn Stream,
    until: Instant,
    alive: &'a dyn Alive,
    /// Bytes to send.
    out: Vec<u8>,
}

/// Performs the handshake, with any peer over by `until`. Reads nothing beyond the handshake's last record.
pub fn shake<P: Peer>(
    mut peer: P,
    stream: &dyn Stream,
    until: Instant,
    alive: &dyn Alive,
) -> Result<(ExtractedSecrets, NextKeys)> {
    let mut line = Line { stream, until, alive, out: Vec::new() };
    let mut received = Vec::new();
    loop {
        let UnbufferedStatus { discard, state } = peer.process(&mut received);
        let step = state.map(|state| line.step(state));
        received.drain(..discard);
        match step {
            Ok(Ok(Step::Again)) => {}
            Ok(Ok(Step::Receive)) => line.receive(&mut received)?,
            Ok(Ok(Step::Finish)) => return peer.finish().map_err(|error| refused(&error)),
            Ok(Err(error)) => return Err(error),
            Err(error) => {
                line.say_why(&mut peer, &mut received);
                return Err(refused(&error));
            }
        }
    }
}

impl Line<'_> {
    fn step<Data>(&mut self, state: ConnectionState<'_, '_, Data>) -> Result<Step> {
        match state {
            ConnectionState::EncodeTlsData(data) => self.encode(data)?,
            ConnectionState::TransmitTlsData(data) => {
                self.send()?;
                data.done();
            }
            ConnectionState::BlockedHandshake => return Ok(Step::Receive),
            ConnectionState::WriteTraffic(_) => return Ok(Step::Finish),
            _ => return Err(Error::lane_failed("lane refused: the peer ended the handshake")),
        }
        Ok(Step::Again)
    }

    fn encode<Data>(&mut self, mut data: EncodeTlsData<'_, Data>) -> Result<()> {
        let begun = self.out.len();
        let room = match data.encode(&mut []) {
            Err(EncodeError::InsufficientSize(size)) => size.required_size,
            Ok(_) | Err(EncodeError::AlreadyEncoded) => 0,
        };
        self.out.resize(begun + room, 0);
        let failed = |error| Error::lane_failed(format!("lane refused: TLS: {error}"));
        data.encode(&mut self.out[begun..]).map_err(failed)?;
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        let mut sent = 0;
        while sent < self.out.len() {
            self.check()?;
            match self.stream.write(&[IoSlice::new(&self.out[sent..])]) {
                Ok(0) => return Err(Error::lane_failed("the peer closed the lane")),
                Ok(bytes) => sent += bytes,
                Err(error) => retry(&error, "sending", self.alive)?,
            }
        }
        self.out.clear();
        Ok(())
    }

    /// Receives one record.
    fn receive(&self, received: &mut Vec<u8>) -> Result<()> {
        let begun = received.len();
        received.resize(begun + HEADER_BYTES, 0);
        self.exact(&mut received[begun..])?;
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&received[begun..]);
        let (_, bytes) = parse_header(header)?;
        if begun + bytes > LANE_HANDSHAKE_BYTES_MAX {
            return Err(Error::lane_failed("lane refused: the peer's handshake is too long"));
        }
        received.resize(begun + bytes, 0);
        self.exact(&mut received[begun + HEADER_BYTES..])
    }

    fn exact(&self, buffer: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            self.check()?;
            match self.stream.read(&mut buffer[filled..]) {
                Ok(0) => return Err(Error::lane_failed("the peer closed the lane")),
                Ok(bytes) => filled += bytes,
                Err(error) => retry(&error, "receiving", self.alive)?,
            }
        }
        Ok(())
    }

    /// Limits the time also for a peer that sends without end.
    fn check(&self) -> Result<()> {
        if Instant::now() > self.until {
            return Err(Error::lane_failed("lane refused: the handshake was not done in time"));
        }
        Ok(())
    }

    /// Sends the alert, if any, as far as the peer takes it at once.
    fn say_why<P: Peer>(&mut self, peer: &mut P, received: &mut [u8]) {
        self.out.clear();
        if let Ok(ConnectionState::EncodeTlsData(data)) = peer.process(received).state
            && self.encode(data).is_err()
        {
            return;
        }
        // The peer sees the end, whether or not the alert arrives.
        let _ = self.stream.write_now(&[IoSlice::new(&self.out)]);
    }
}

/// Error of a failed handshake for people; problems with certificates are named as such.
pub fn refused(error: &TlsError) -> Error {
    let text = match error {
        TlsError::InvalidCertificate(_)
        | TlsError::NoCertificatesPresented
        | TlsError::InvalidCertRevocationList(_) => format!("certificate: {error}"),
        TlsError::AlertReceived(alert) => alert_text(*alert),
        _ => format!("TLS: {error}"),
    };
    Error::lane_failed(format!("lane refused: {text}"))
}

/// Meaning of the peer's alert.
pub fn alert_text(alert: AlertDescription) -> String {
    use AlertDescription as Alert;
    match alert {
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied
        | Alert::DecryptError
        | Alert::CertificateRequired => {
            format!("certificate: the peer did not accept ours ({alert:?})")
        }
        _ => format!("TLS: the peer said {alert:?}"),
    }
}
