"""Checks every RoCE v2 packet of a pcapng file with nothing of Ferroce: lengths, IPv4 header checksum, ICRC by zlib.

usage: icrc.py FILE          prints each packet's comment; fails on the first packet that is wrong and is not said to be
"""

import struct
import sys
import zlib


def packets(data):
    """Frames of a pcapng file with their comments."""
    at, order = 0, "<"
    while at < len(data):
        kind = struct.unpack_from(order + "I", data, at)[0]
        if kind == 0x0A0D0D0A:
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
        length = struct.unpack_from(order + "I", data, at + 4)[0]
        assert length >= 12 and length % 4 == 0, f"block of {length} bytes at {at}"
        assert struct.unpack_from(order + "I", data, at + length - 4)[0] == length, f"block at {at} is broken"
        if kind == 6:
            captured = struct.unpack_from(order + "I", data, at + 20)[0]
            options, comment = at + 28 + (captured + 3) // 4 * 4, ""
            while options + 4 <= at + length - 4:
                code, size = struct.unpack_from(order + "HH", data, options)
                if code == 0:
                    break
                if code == 1:
                    comment = data[options + 4 : options + 4 + size].decode()
                options += 4 + (size + 3) // 4 * 4
            yield data[at + 28 : at + 28 + captured], comment
        at += length


def ones_complement_sum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def check(frame):
    """True for a sound RoCE v2 frame, False for another protocol; an AssertionError says what is wrong."""
    ip, ethertype = 14, struct.unpack_from(">H", frame, 12)[0]
    if ethertype == 0x8100:
        ip, ethertype = 18, struct.unpack_from(">H", frame, 16)[0]
    header = bytearray(frame[ip:])
    if ethertype == 0x0800:
        assert header[0] == 0x45, "IPv4 header length"
        assert ones_complement_sum(bytes(header[:20])) == 0xFFFF, "IPv4 header checksum"
        udp, end, protocol = 20, struct.unpack_from(">H", header, 2)[0], header[9]
    elif ethertype == 0x86DD:
        udp, end, protocol = 40, 40 + struct.unpack_from(">H", header, 4)[0], header[6]
    else:
        return False
    if protocol != 17 or struct.unpack_from(">H", header, udp + 2)[0] != 4791:
        return False
    assert end <= len(header), "IP length"
    assert struct.unpack_from(">H", header, udp + 4)[0] == end - udp, "UDP length"
    assert all(b == 0 for b in header[end:]), "Ethernet padding"
    # What routers may change counts as ones, and so do 8 bytes in place of a link header.
    if udp == 20:
        masked = (1, 8, 10, 11)
    else:
        header[0] |= 0x0F
        masked = (1, 2, 3, 7)
    for i in (*masked, udp + 6, udp + 7, udp + 8 + 4):
        header[i] = 0xFF
    want = zlib.crc32(b"\xff" * 8 + header[: end - 4])
    assert struct.unpack_from("<I", header, end - 4)[0] == want, "ICRC"
    return True


def main():
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    for number, (frame, comment) in enumerate(packets(data), 1):
        try:
            check(frame)
        except AssertionError as e:
            if "Corrupt" not in comment:
                sys.exit(f"packet {number}: {e} is wrong ({comment})")
        print(comment)


main()
