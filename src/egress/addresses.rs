//! What kind of place an address is. Pure.
//!
//! Sources: RFC 6890 and the registries of special-purpose addresses at IANA; for metadata services, the documents of each provider.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What kind of place an address is, as far as rules tell such places apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Where machines of a cloud ask who they are, and get credentials.
    Metadata,
    /// Neighbours on the wire: 169.254.0.0/16, `fe80::/10`.
    LinkLocal,
    /// This machine, and "any address", which the kernel takes for it.
    Loopback,
    /// Networks of organisations: RFC 1918, `fc00::/7`, shared address space of carriers (RFC 6598).
    Private,
    /// Many at once.
    Multicast,
    /// Set aside for documents, tests, protocols and the future: nobody who answers there is who they seem.
    Reserved,
    /// The rest.
    Public,
}

impl Kind {
    /// For messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Metadata => "a cloud's metadata service",
            Self::LinkLocal => "a link-local address",
            Self::Loopback => "an address of this machine",
            Self::Private => "a private address",
            Self::Multicast => "a multicast or broadcast address",
            Self::Reserved => "a reserved address",
            Self::Public => "a public address",
        }
    }
}

/// Metadata services outside of the link-local ranges.
const METADATA_4: [Ipv4Addr; 3] = [
    // Alibaba Cloud.
    Ipv4Addr::new(100, 100, 100, 200),
    // Azure's WireServer.
    Ipv4Addr::new(168, 63, 129, 16),
    // Oracle Cloud, its first generation.
    Ipv4Addr::new(192, 0, 0, 192),
];

/// And in them.
const METADATA_LINK_LOCAL_4: [Ipv4Addr; 5] = [
    // AWS, Google Cloud, Azure, Oracle, DigitalOcean, Hetzner, OpenStack.
    Ipv4Addr::new(169, 254, 169, 254),
    // Credentials of ECS tasks and of EKS pods.
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(169, 254, 170, 23),
    // Tencent Cloud, Scaleway.
    Ipv4Addr::new(169, 254, 0, 23),
    Ipv4Addr::new(169, 254, 42, 42),
];

const METADATA_6: [Ipv6Addr; 5] = [
    // AWS, and its EKS pods.
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    // Google Cloud.
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    // Scaleway.
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
    // OpenStack.
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
];

/// The kind of an address. One of IPv4 inside of IPv6 is of its own kind.
pub(super) fn kind_of(address: IpAddr) -> Kind {
    match address {
        IpAddr::V4(address) => kind_of_4(address),
        IpAddr::V6(address) => match inner(address) {
            Some(inside) => match kind_of_4(inside) {
                // The way there is a tunnel or a translator, which only a public address is meant for.
                Kind::Public => Kind::Public,
                other => other,
            },
            None => kind_of_6(address),
        },
    }
}

/// The address as the kernel takes it: an IPv4-mapped one is that of IPv4.
pub(super) fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

fn kind_of_4(address: Ipv4Addr) -> Kind {
    let [a, b, c, _] = address.octets();
    if METADATA_4.contains(&address) || METADATA_LINK_LOCAL_4.contains(&address) {
        return Kind::Metadata;
    }
    match (a, b, c) {
        (169, 254, _) => Kind::LinkLocal,
        // "This network": the kernel takes 0.0.0.0 for itself, and some take all of it so.
        (0 | 127, _, _) => Kind::Loopback,
        (10, _, _) | (172, 16..=31, _) | (192, 168, _) | (100, 64..=127, _) => Kind::Private,
        (224..=239, _, _) => Kind::Multicast,
        (255, 255, 255) if address.is_broadcast() => Kind::Multicast,
        // Protocol assignments, documentation, 6to4 relays, benchmarks, the future.
        (192, 0, 0 | 2)
        | (192, 88, 99)
        | (198, 18 | 19, _)
        | (198, 51, 100)
        | (203, 0, 113)
        | (240..=255, _, _) => Kind::Reserved,
        _ => Kind::Public,
    }
}

fn kind_of_6(address: Ipv6Addr) -> Kind {
    if METADATA_6.contains(&address) {
        return Kind::Metadata;
    }
    let first = address.segments()[0];
    if address.is_loopback() || address.is_unspecified() {
        Kind::Loopback
    } else if first & 0xffc0 == 0xfe80 {
        Kind::LinkLocal
    } else if first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfec0 {
        // Unique local, and the site-local ones of old.
        Kind::Private
    } else if first & 0xff00 == 0xff00 {
        Kind::Multicast
    } else if first & 0xe000 == 0x2000
        && !matches!(address.segments(), [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..])
    {
        Kind::Public
    } else {
        // Only 2000::/3 is given out.
        Kind::Reserved
    }
}

/// The address of IPv4 that one of IPv6 leads to: mapped, compatible, translated (RFC 6052, with the local prefix of RFC 8215), 6to4, ISATAP; of a Teredo
/// client.
fn inner(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let four = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // `::` and `::1` are not among them.
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 || low > 1 => Some(four(high, low)),
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [0x2002, high, low, ..]
        | [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some(four(high, low)),
        [0x2001, 0, _, _, _, _, high, low] => Some(four(!high, !low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> Kind {
        kind_of(text.parse().unwrap())
    }

    #[test]
    fn every_form_of_a_closed_address_is_of_its_kind() {
        for text in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "::ffff:0:169.254.169.254",
            "fe80::5efe:169.254.169.254",
            "fd00:ec2::254",
            "fd20:ce::254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "169.254.170.2",
        ] {
            assert_eq!(kind(text), Kind::Metadata, "{text}");
        }
        for text in
            ["127.0.0.1", "127.255.0.3", "0.0.0.0", "0.1.2.3", "::1", "::", "::ffff:127.0.0.1", "::127.0.0.1"]
        {
            assert_eq!(kind(text), Kind::Loopback, "{text}");
        }
        for text in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "fc00::1",
            "fd12::1",
            "fec0::1",
            "::ffff:10.1.1.1",
            "2001:0:1:2:3:4:f5ff:fffe",
        ] {
            assert_eq!(kind(text), Kind::Private, "{text}");
        }
        for text in ["169.254.1.1", "fe80::1", "febf::1", "::ffff:169.254.9.9"] {
            assert_eq!(kind(text), Kind::LinkLocal, "{text}");
        }
        for text in ["224.0.0.1", "239.255.255.255", "255.255.255.255", "ff02::1"] {
            assert_eq!(kind(text), Kind::Multicast, "{text}");
        }
        for text in [
            "192.0.2.1",
            "198.51.100.7",
            "203.0.113.9",
            "198.18.0.1",
            "240.0.0.1",
            "2001:db8::1",
            "3fff:1::1",
            "100::1",
            "4000::1",
        ] {
            assert_eq!(kind(text), Kind::Reserved, "{text}");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1",
            "::ffff:1.1.1.1",
            "64:ff9b::8.8.8.8",
        ] {
            assert_eq!(kind(text), Kind::Public, "{text}");
        }
    }

    #[test]
    fn a_mapped_address_is_the_one_it_maps() {
        assert_eq!(plain("::ffff:1.2.3.4".parse().unwrap()), "1.2.3.4".parse::<IpAddr>().unwrap());
        assert_eq!(plain("::1".parse().unwrap()), "::1".parse::<IpAddr>().unwrap());
    }
}
