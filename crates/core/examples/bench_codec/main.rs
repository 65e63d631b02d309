//! Owns the codecs' figures: speed against memcpy in the same run, and fidelity; `--json` for machines.

#[path = "../../tests/int8/data.rs"]
mod data;
mod fidelity;
mod speed;
#[path = "../../tests/int8/trip.rs"]
mod trip;

use std::fmt::Write as _;
use std::io::{self, Write as _};

use tierkv_core::codec::Codec;
use tierkv_core::codec::int8::Isa;

use speed::{Case, Figures};

const LOSSY: [Codec; 2] = [Codec::Int8, Codec::Int8MeanHad];

fn main() -> io::Result<()> {
    let options: Vec<String> = std::env::args().skip(1).collect();
    let wanted = options.iter().find(|option| !option.starts_with('-'));
    let isa = wanted.map_or(Isa::best(), |name| {
        Isa::all().into_iter().find(|isa| isa.name() == name).unwrap_or_else(Isa::best)
    });
    let figures: Vec<(Case, Figures)> =
        Case::all().into_iter().map(|case| (case, speed::measure(isa, &case))).collect();
    let report = if options.iter().any(|option| option == "--json") {
        json(isa, &figures)
    } else {
        text(isa, &figures)
    };
    io::stdout().write_all(report.as_bytes())
}

fn text(isa: Isa, figures: &[(Case, Figures)]) -> String {
    let mut out = format!(
        "codecs, {}, one core, {} MiB of source, median of {} rounds\n",
        isa.name(),
        speed::SET_BYTES >> 20,
        speed::ROUNDS
    );
    for (case, figures) in figures {
        let _ = writeln!(
            out,
            "  {:<8}  {:<22} memcpy {:5.2} GB/s   encode {:5.2} GB/s = {:.2} x   decode {:5.2} GB/s = {:.2} x",
            case.codec_name(),
            case.name,
            figures.memcpy_gbps,
            figures.encode_gbps,
            figures.encode_over_memcpy,
            figures.decode_gbps,
            figures.decode_over_memcpy
        );
    }
    for codec in [Codec::Int8, Codec::Int8MeanHad, Codec::Lossless] {
        let ratio = fidelity::ratio(codec);
        let _ = writeln!(out, "  bytes of bf16 over bytes of {codec:?}, head dim 128: {ratio:.3}");
    }
    for codec in LOSSY {
        for (spread, db) in fidelity::all(codec) {
            let name = spread.name();
            let _ =
                writeln!(out, "  true SNR, {codec:?}, bf16, head dim 128, {name:<12} {db:.1} dB");
        }
    }
    out
}

fn json(isa: Isa, figures: &[(Case, Figures)]) -> String {
    let cases: Vec<String> = figures
        .iter()
        .map(|(case, figures)| {
            format!(
                "{{\"codec\":\"{}\",\"case\":\"{}\",\"memcpyGbps\":{:.3},\"encodeGbps\":{:.3},\"encodeOverMemcpy\":{:.3},\
                 \"decodeGbps\":{:.3},\"decodeOverMemcpy\":{:.3}}}",
                case.codec_name(),
                case.name,
                figures.memcpy_gbps,
                figures.encode_gbps,
                figures.encode_over_memcpy,
                figures.decode_gbps,
                figures.decode_over_memcpy
            )
        })
        .collect();
    let snr = LOSSY.map(|codec| {
        let each =
            fidelity::all(codec).map(|(spread, db)| format!("\"{}\":{db:.2}", spread.name()));
        each.collect::<Vec<_>>().join(",")
    });
    format!(
        "{{\"isa\":\"{}\",\"setBytes\":{},\"rounds\":{},\"cases\":[{}],\"snrDb\":{{{}}},\
         \"snrTurnedDb\":{{{}}},\"bf16OverInt8\":{:.4},\"bf16OverTurned\":{:.4},\"bf16OverLossless\":{:.4}}}\n",
        isa.name(),
        speed::SET_BYTES,
        speed::ROUNDS,
        cases.join(","),
        snr[0],
        snr[1],
        fidelity::ratio(Codec::Int8),
        fidelity::ratio(Codec::Int8MeanHad),
        fidelity::ratio(Codec::Lossless)
    )
}
