//! Plots as SVG: text stays text, so no font is needed here.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::cells::{LARGE, LOCKS, SHAPES, SMALL};
use super::results::{Results, Which};
use super::seed::{SEED, VPP};
use crate::fastpath::{Copying, Direction, Locking};

/// Size of a plot, pixels.
const SIZE: (u32, u32) = (860, 420);
const FONT: &str = "sans-serif";

const BLUE_UP: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const ORANGE_DOWN: RGBColor = RGBColor(0xd9, 0x6c, 0x0b);
const GREY: RGBColor = RGBColor(0x8a, 0x8a, 0x8a);
const GREEN: RGBColor = RGBColor(0x2e, 0x7d, 0x32);
const RED: RGBColor = RGBColor(0xb7, 0x1c, 0x1c);

/// A bar in a group of bars.
struct Bar {
    value: f64,
    colour: RGBColor,
}

/// Groups of bars with a name under each.
struct Bars<'a> {
    title: String,
    unit: &'a str,
    legend: Vec<(&'a str, RGBColor)>,
    groups: Vec<(String, Vec<Bar>)>,
}

/// Groups in a row: group `n` lies from `n` to `n + 1`, its name in the middle.
struct Groups(Vec<String>);

impl Ranged for Groups {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let part = value / self.0.len().max(1) as f64;
        low + (part * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        (0..self.0.len()).map(|at| at as f64 + 0.5).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        0.0..self.0.len() as f64
    }
}

impl ValueFormatter<f64> for Groups {
    fn format_ext(&self, value: &f64) -> String {
        self.0.get(*value as usize).cloned().unwrap_or_default()
    }
}

impl Bars<'_> {
    fn draw(&self, path: &Path) -> Result<()> {
        let fault = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", path.display());
        let highest = self
            .groups
            .iter()
            .flat_map(|(_, bars)| bars.iter().map(|bar| bar.value))
            .fold(1.0, f64::max);
        let root = SVGBackend::new(path, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| fault(&error))?;
        let names = Groups(self.groups.iter().map(|(name, _)| name.clone()).collect());
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, (FONT, 17))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(58)
            .build_cartesian_2d(names, 0.0..highest * 1.15)
            .map_err(|error| fault(&error))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .y_desc(self.unit)
            .label_style((FONT, 13))
            .draw()
            .map_err(|error| fault(&error))?;
        for (name, colour) in &self.legend {
            let colour = *colour;
            chart
                .draw_series(std::iter::empty::<Rectangle<(f64, f64)>>())
                .map_err(|error| fault(&error))?
                .label(*name)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled())
                });
        }
        for (at, (_, bars)) in self.groups.iter().enumerate() {
            // A tenth of the group stays free on both sides.
            let width = 0.8 / bars.len().max(1) as f64;
            for (place, bar) in bars.iter().enumerate() {
                let left = at as f64 + 0.1 + width * place as f64;
                let right = left + width * 0.92;
                let text = if bar.value < 100.0 {
                    format!("{:.1}", bar.value)
                } else {
                    format!("{:.0}", bar.value)
                };
                chart
                    .draw_series([Rectangle::new(
                        [(left, 0.0), (right, bar.value)],
                        bar.colour.filled(),
                    )])
                    .map_err(|error| fault(&error))?;
                chart
                    .draw_series([Text::new(
                        text,
                        (left + width * 0.08, bar.value + highest * 0.045),
                        (FONT, 11),
                    )])
                    .map_err(|error| fault(&error))?;
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.3))
            .label_font((FONT, 13))
            .draw()
            .map_err(|error| fault(&error))?;
        root.present().map_err(|error| fault(&error))
    }
}

/// Draws all plots into a directory.
pub(super) fn draw(results: &Results, directory: &Path) -> Result<()> {
    cost(results).draw(&directory.join("cost.svg"))?;
    vpp(results).draw(&directory.join("vpp.svg"))?;
    locks(results).draw(&directory.join("locks.svg"))
}

fn short(n: u32) -> String {
    match n {
        1_000_000.. => format!("{}M", n / 1_000_000),
        _ => format!("{}k", n / 1_000),
    }
}

fn cost(results: &Results) -> Bars<'static> {
    let groups = SHAPES.iter().filter_map(|shape| {
        let up = results.find(Which::of(Direction::Up, LARGE, *shape))?;
        let down = results.find(Which::of(Direction::Down, LARGE, *shape))?;
        let bars = [
            (up.ns_per_packet, BLUE_UP),
            (down.ns_per_packet, ORANGE_DOWN),
            (up.mac_forward_ns, GREY),
        ]
        .map(|(value, colour)| Bar { value, colour });
        let name = format!("{} sessions, {} flows", short(shape.0), short(shape.1));
        Some((name, bars.into()))
    });
    Bars {
        title: "Cost per packet: PPPoE, NAT44, policers, filter; 1492-byte IP, one worker"
            .to_owned(),
        unit: "ns per packet",
        legend: vec![
            ("upstream", BLUE_UP),
            ("downstream", ORANGE_DOWN),
            ("MAC forward", GREY),
        ],
        groups: groups.collect(),
    }
}

fn vpp(results: &Results) -> Bars<'static> {
    let mut groups = Vec::new();
    for vpp in &VPP {
        for (direction, way, theirs) in [
            (Direction::Up, "up", vpp.up),
            (Direction::Down, "down", vpp.down),
        ] {
            let shape = (vpp.sessions, vpp.flows);
            if let Some(ours) = results.find(Which::of(direction, SMALL, shape)) {
                let bars = [(theirs, GREY), (ours.clocks_at_2_1_ghz, BLUE_UP)]
                    .map(|(value, colour)| Bar { value, colour });
                let name = format!("{way}, {} sessions", short(vpp.sessions));
                groups.push((name, bars.into()));
            }
        }
    }
    Bars {
        title: "Clocks per 60-byte frame at 2.1 GHz, 65k flows, one worker".to_owned(),
        unit: "clocks per packet",
        legend: vec![("VPP 26.06 pppoe + nat44-ed", GREY), ("ironbng", BLUE_UP)],
        groups,
    }
}

fn locks(results: &Results) -> Bars<'static> {
    let groups = SEED.iter().map(|row| {
        let ours = |locking, copy| {
            let which = Which {
                workers: row.cores,
                locking,
                copy,
                ..Which::of(Direction::Up, LARGE, LOCKS)
            };
            results.find(which).map(|figures| figures.gbps_ip)
        };
        let bars: Vec<_> = [
            (Some(row.both), GREY),
            (Some(row.none), BLACK),
            (ours(Locking::Packet, Copying::Both), RED),
            (ours(Locking::Burst, Copying::Both), ORANGE_DOWN),
            (ours(Locking::None, Copying::Both), GREEN),
        ]
        .into_iter()
        .filter_map(|(value, colour)| {
            Some(Bar {
                value: value?,
                colour,
            })
        })
        .collect();
        let cores = if row.cores == 1 { "core" } else { "cores" };
        (format!("{} {cores}", row.cores), bars)
    });
    Bars {
        title: format!(
            "Total Gbit/s of 1492-byte IP, upstream, frames copied in and out; ours: {} sessions, {} flows",
            short(LOCKS.0),
            short(LOCKS.1)
        ),
        unit: "Gbit/s of IP, all cores",
        legend: vec![
            ("seed: both locks", GREY),
            ("seed: no lock", BLACK),
            ("ours: lock per packet", RED),
            ("ours: lock per burst", ORANGE_DOWN),
            ("ours: no lock", GREEN),
        ],
        groups: groups.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_share_the_width_and_are_named_in_the_middle() {
        let groups = Groups(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(groups.map(&1.0, (100, 300)), 200);
        assert_eq!(groups.format_ext(&1.5), "b");
    }
}
