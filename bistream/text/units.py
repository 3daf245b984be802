"""Units and currencies: how they are written, and their names in English (one, several) and Chinese. Facts; pure."""

from __future__ import annotations

_TABLE = """
km kilometer kilometers 公里
m meter meters 米
cm centimeter centimeters 厘米
mm millimeter millimeters 毫米
µm,μm,um micrometer micrometers 微米
nm nanometer nanometers 纳米
mi mile miles 英里
ft foot feet 英尺
yd yard yards 码
kg kilogram kilograms 千克
g gram grams 克
mg milligram milligrams 毫克
µg,μg,mcg microgram micrograms 微克
lb,lbs pound pounds 磅
oz ounce ounces 盎司
l liter liters 升
ml milliliter milliliters 毫升
cl centiliter centiliters 厘升
gal gallon gallons 加仑
h,hr,hrs hour hours 小时
min,mins minute minutes 分钟
s,sec,secs second seconds 秒
ms millisecond milliseconds 毫秒
µs,μs microsecond microseconds 微秒
ns nanosecond nanoseconds 纳秒
mph mile_per_hour miles_per_hour 英里每小时
kmh,kph kilometer_per_hour kilometers_per_hour 公里每小时
rpm revolution_per_minute revolutions_per_minute 转每分钟
fps frame_per_second frames_per_second 帧每秒
dpi dot_per_inch dots_per_inch DPI
ppm part_per_million parts_per_million PPM
hz hertz hertz 赫兹
khz kilohertz kilohertz 千赫兹
mhz megahertz megahertz 兆赫兹
ghz gigahertz gigahertz 吉赫兹
w watt watts 瓦
kw kilowatt kilowatts 千瓦
gw gigawatt gigawatts 吉瓦
wh watt_hour watt_hours 瓦时
kwh kilowatt_hour kilowatt_hours 千瓦时
v volt volts 伏
kv kilovolt kilovolts 千伏
mah milliamp_hour milliamp_hours 毫安时
hpa hectopascal hectopascals 百帕
kpa kilopascal kilopascals 千帕
mbar millibar millibars 毫巴
psi psi psi PSI
mmhg millimeter_of_mercury millimeters_of_mercury 毫米汞柱
db decibel decibels 分贝
cal calorie calories 卡
kcal kilocalorie kilocalories 千卡
kj kilojoule kilojoules 千焦
kb kilobyte kilobytes KB
mb megabyte megabytes MB
gb gigabyte gigabytes GB
tb terabyte terabytes TB
pb petabyte petabytes PB
kbps kilobit_per_second kilobits_per_second Kbps
mbps megabit_per_second megabits_per_second Mbps
gbps gigabit_per_second gigabits_per_second Gbps
px pixel pixels 像素
ha hectare hectares 公顷
m²,m2 square_meter square_meters 平方米
km²,km2 square_kilometer square_kilometers 平方公里
cm²,cm2 square_centimeter square_centimeters 平方厘米
ft²,ft2 square_foot square_feet 平方英尺
m³,m3 cubic_meter cubic_meters 立方米
cm³,cm3 cubic_centimeter cubic_centimeters 立方厘米
°c,℃ degree_Celsius degrees_Celsius 摄氏度
°f,℉ degree_Fahrenheit degrees_Fahrenheit 华氏度
° degree degrees 度
% percent percent %
‰ per_mille per_mille ‰
""".strip().splitlines()
_CASED_TABLE = """
mW milliwatt milliwatts 毫瓦
MW megawatt megawatts 兆瓦
mV millivolt millivolts 毫伏
mA milliamp milliamps 毫安
Pa pascal pascals 帕
MPa megapascal megapascals 兆帕
Mb megabit megabits Mb
Gb gigabit gigabits Gb
""".strip().splitlines()
_CAPITALS_ARE_LETTERS = "m g h s"  # 5G, 10M, 3H are no units
Names = tuple[str, str, str]  # English for one, for several, Chinese


def _units(table: list[str]) -> dict[str, Names]:
    units: dict[str, Names] = {}
    for line in table:
        forms, one, many, chinese = line.split()
        units |= dict.fromkeys(forms.split(","), (one.replace("_", " "), many.replace("_", " "), chinese))
    return units


UNITS = _units(_TABLE)  # lower-case
CASED_UNITS = _units(_CASED_TABLE)  # before those above


def unit_names(unit: str) -> Names | None:
    """None: not a unit."""
    if unit in CASED_UNITS:
        return CASED_UNITS[unit]
    return None if unit.isupper() and unit.lower() in _CAPITALS_ARE_LETTERS.split() else UNITS.get(unit.lower())


UNIT_PATTERN = "|".join(sorted({*UNITS, *CASED_UNITS}, key=len, reverse=True))  # to be matched without regard to case

# sign: English for one, for several, for hundredths (empty: none), Chinese
CURRENCIES = {
    "$": ("dollar", "dollars", "cents", "美元"),
    "US$": ("US dollar", "US dollars", "cents", "美元"),
    "HK$": ("Hong Kong dollar", "Hong Kong dollars", "cents", "港元"),
    "A$": ("Australian dollar", "Australian dollars", "cents", "澳元"),
    "C$": ("Canadian dollar", "Canadian dollars", "cents", "加元"),
    "CA$": ("Canadian dollar", "Canadian dollars", "cents", "加元"),
    "AU$": ("Australian dollar", "Australian dollars", "cents", "澳元"),
    "NZ$": ("New Zealand dollar", "New Zealand dollars", "cents", "新西兰元"),
    "S$": ("Singapore dollar", "Singapore dollars", "cents", "新加坡元"),
    "€": ("euro", "euros", "cents", "欧元"),
    "£": ("pound", "pounds", "pence", "英镑"),
    "¥": ("yen", "yen", "", "元"),
    "₹": ("rupee", "rupees", "", "卢比"),
    "₩": ("won", "won", "", "韩元"),
    "₽": ("ruble", "rubles", "", "卢布"),
}
CURRENCY_CODES = {
    "USD": ("US dollar", "US dollars", "美元"),
    "EUR": ("euro", "euros", "欧元"),
    "GBP": ("pound", "pounds", "英镑"),
    "JPY": ("yen", "yen", "日元"),
    "CNY": ("yuan", "yuan", "元"),
    "RMB": ("yuan", "yuan", "元"),
}
