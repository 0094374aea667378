"""Answers and whether they are right: the tables of `test_judged_answers.py`."""

from __future__ import annotations

SUFFIXES = [
    "k", "K", "M", "m", "bn", "mil", "B", "b", "T", "x", "e", "i", "n", "y", "MM", "hundred", "thousand", "million",
    "billion", "dozen", "half", "grand", "lakh", "crore", "mln", "mio", "tn", "xy", "ab", "abc", "th", "xyz", "F",
    "D", "E", "j", "\u2164", "\u216b", "pi", "\\pi", "\\text{k}", "\\text{ million}", "\\mathrm{M}", "万", "百万", "億",
    "миллионов", "d", "f",
]  # fmt: skip
"""After 5, with any space or none between."""

NEVER = {
    "powers": {
        "25": ["2⁵", "2^5", "2^{5}", "\uff12\u2075", "2 ⁵"],
        "52": ["5²", "5₂", "5_2", "5_{2}"],
        "33": ["3³"],
        "5": [
            "5²", "5₆", "5_6", "5^2", "5^{-1}", "5⁻¹", "5 squared", "5 cubed", "5 \\text{ to the power of two}", "5ⁿ",
            "5^n", "101_2",
        ],
        "11": ["11_2", "11_{2}"],
        "102": ["10²"],
        "101": ["10¹"],
        "21": ["2¹"],
    },
    "signs of one character": {
        "55": ["5⑤", "5⁵", "⑤⑤"],
        "5.5": ["⒌5"],
        "1000": ["🄂000"],
        "11/3": ["1⅓"],
        "11/2": ["1\xbd"],
        "1695/242": ["7 \xbd42"],
        "1/242": ["\xbd42"],
        "5": ["5\xbd", "5‰", "5…", "5∞"],
        "21": ["2\xbd"],
        "500": ["0,500"],
    },
    "relations": {
        "6": [
            "x >= 6", "x != 6", "x <= 6", "x \\neq 6", "x \\geq 6", "x > 6", "x < 6", "x ≥ 6", "x ≠ 6", "x ≤ 6",
            "x ≈ 6", "x \\approx 6", "> 6", "< 6", ">= 6", "≥6", "6 < x", "6 <= x", "x =! 6", "x == 5 = 6",
            "x \uff1e= 6", "x \uff01= 6", "!= 6", "=/= 6", "x =/= 6", "\\lnot x = 6", "\\text{not } x = 6",
            "not x = 6", "x - y = 6", "2x = 6", "x^2 = 6", "x² = 6", "-x = 6", "|x| = 6", "\\frac{x}{2} = 6",
            "1/x = 6", "half x = 6", "half of x = 6", "twice x = 6", "\\sqrt{x} = 6", "log x = 6", "5 = 6", "5=5=6",
            "x \\in 6", "6 = 5", "x+1=6", "x/2=6", "f(x)=6", "x'=6", "\\pm 6", "±6", "x = ±6", "+-6", "6 ± 1",
            "6 \\pm 1", "x \\sim 6", "x ~ 6", "mod = 6 \\mod 7",
        ],
    },
    "two answers": {
        "6": [
            "5 or x=6", "x=5, y=6", "x=5 or 6", "x=6 or 5", "6 or 5", "6, 5", "5, 6", "5,6", "6;5", "6/5", "6 and 5",
            "5 and 6", "6 or five", "6 (or 5)", "6 or maybe more", "6 and x", "x or y = 6", "x, y = 6", "x = y = 6",
            "6 / five", "6|5", "6 & 5", "6 vs 5", "either 6 or 5", "6 xor seven", "6\\text{ or }5", "6\\text{or}5",
            "6\\ or\\ 5", "6\\\\5", "6\t5", "6  5", "6 or seven", "6 oder sieben", "{5, 6}", "\\{6\\}", "(5,6)",
            "[5,6]", "[6]", "6 but maybe four", "6 vs four", "6, maybe seven", "6 instead of seven", "6 to seven",
            "6 through ten", "6 - ten", "6-ten", "6\u20147", "6\u20137", "6-7", "6 to 7", "6...7", "6..7", "6~7",
            "6:7", "6 : 7", "6 is to 7", "6\\colon 7", "6 of 7", "6 out of 7", "6 out of ten", "6 in ten",
            "6 per two", "6 per dozen", "6, seven", "6 (seven)", "6(7)", "6 [7]", "6 {7}", "6{7}", "6,\\ 7",
            "6\\quad 7", "6\\,7", "6 7/8 9",
        ],
    },
    "factorials": {
        "5": ["5!", "5 !", "5\uff01", "5!!", "5! ", "5 factorial", "5\\,!", "5\\!!", "5!."],
        "120": ["5"],
        "6": ["3!!", "6!"],
    },
    "multipliers": {
        "5": [
            "\\$5k", "\\$5M", "\\$5 m", "$5m", "5 hundred-thousand", "5 thousands", "5 Million dollars", "5 MILLION",
            "5millions", "5 million-dollar", "5 and a half", "5 score", "5 gross", "5 tens", "5 hundredths",
            "5 tenths", "5ths", "5 halves", "5 thirds", "5 quarters", "5 kilo", "5 times six", "5 times x",
            "5 doubled", "5 per mille", "5 point five", "5 twenty", "5-fold",
            "5 fold", "5 tenfold", "5 a", "5 a b", "5\\infty",
            "5 infinity", "5 log", "5 sin x", "5 mod three", "5 \\mod 3", "5 choose two", "5 choose n", "5\\choose 2",
            "5\\cdot 2", "5 \\times 10^3", "5\xd710\xb3", "5e0", "5e3", "5E3", "5 e 3", "5 x 3", "0x5", "0b101", "5h",
            "5L",
        ],
        "1.2": ["1.2k", "1.2 k", "1.2M", "1.2 million", "1.2 \\text{ million}", "1.2 thousand", "1.2e3"],
    },
    "denials": {
        "5": [
            "5\\ \\text{not sure}", "5 \\text{ is wrong}", "5 wrong", "not 5", "\\text{not }5", "5 maybe", "maybe 5",
            "5 (not)", "5?", "5 negative", "5 below", "5 below zero", "5 minus", "5-", "5 -", "5 - x", "5-x", "5+",
            "5 or more", "5 at most", "5 apples at least",
            "5 onwards", "5 remainder", "5 ish", "5 quintillion", "5 zillion", "5 onehundred", "5 a-b", "5 u-x",
            "5 x's",
            "-\\$-5", "5 m/m", "5 x/y", "5 Millionen", "5 Milliarden", "5 or less", "5 less than ten",
            "5 more than x", "5, wait", "5 hmm", "5 I guess",
            "5 approximately", "5 NOT", "5 Not", "5 isn't it", "5 no", "never 5", "5 eggs, no, 6", "5 eggs. No, six.",
            "5 eggs is wrong", "5 none", "5 nan", "5 undefined", "5 half-dozen", "5 man-and-half",
        ],
    },
    "other numbers": {
        "3": [
            "3:30", "3.30.5", "3h30", "3 hours and 20 minutes", "3 hours 20 minutes", "3h 20m", "3 hours, 20 minutes",
            "3 hours and some", "3 feet 6 inches", '3\'6"', "3° 30'", "3/4/2020", "2020-3", "3-4-5", "3.14...",
            "3 \\frac{1}{2}", "3\\frac12", "3\xbd", "3 1/2", "3\\tfrac{1}{2}", "3 + 1/2", "3 and 1/2", "3 R 1",
            "3 R1", "3 remainder one", "3r1", "3 3", "3\u200b4", "3\xad4", "3̅", "3̸", "3⃝", "III", "3i", "3+4i",
            "3j", "3^", "3_", "3(", "3)", "3{}", "3\\", "3 \\%\\%", "3%%", "30\\%", "3 per cent of x",
            "3\\overline{3}", "3.\\overline{3}", "3.(3)", "3.3̅", "3'", "3''", "3\\prime", "3^\\prime", "3,0", "3,00",
            "3.0.0", "03:00", "3!", "3*",
        ],
        "3.3": ["3.3...", "3.3..", "3.3…", "3.\\dot{3}", "3.\\overline{3}", "3.3\\ldots"],
        "12": ["3 4", "3(4", "3 * 4 or 5", "1 2", "1\u20092", "1,2", "1;2", "{1}2", "1{2}"],
        "34": ["3 4", "3{4}"],
        "0.5": ["50\\%", "0.5 1", ".5.", "0.5k"],
        "50": ["0.5"],
        "25": ["0.25"],
        "0.25": ["25\\%"],
        "20": ["1 20", "1/20"],
        "6": ["5{6}", "x = 2 y = 6"],
        "30": ["5{6}"],
        "2.5": ["5\\frac12", "2\\frac12 or 3"],
        "5.5": ["5\\frac12"],
        "5": ["-5", "(-5)", "- 5", "\u20135"],
        "-5": ["5", "--5", "5-", "(5)"],
        "8": ["2^{2}2", "2^12"],
        "200": ["3 hours and 20 minutes"],
        "320": ["3 hours and 20 minutes"],
    },
}  # fmt: skip
"""Kind, gold, contents of a box, a tag or a marked line that are not the gold."""

ALWAYS = {
    "5": [
        "5", "5.", "5.0", "5.00", "5 apples", "5 apples per day", "5 apples a day", "5 apples/day", "5/day",
        "\\$5/hour", "5 / day", "5 \\text{ apples}", "5\\text{apples}", "5\\ \\text{apples}", "5~\\text{apples}",
        "5\\,\\text{apples}", "5\\;\\mathrm{kg}", "5\\text{ m}", "5\\,\\text{m}", "5 \\text{ m/s}", "5 km/h", "5km/h",
        "5km", "5 km", "5cm", "5 kg", "5mph", "5 mL", "5 lbs.", "5 lbs", "5 oz.", "5 p.m.", "5 pm", "5 PM", "5PM",
        "5 a.m.", "5 o'clock", "5 sq. ft.", "5 square feet", "5 cubic meters", "5 cm^2", "5 cm²", "5 \\text{ cm}^2",
        "5\\text{ m}^2", "5 \\text{ cm}^{3}", "5 ft^2", "5 hours", "5 hours per week", "5 seconds", "5 minutes",
        "5 years old", "5 more apples", "5 fewer apples", "5 percent", "5%", "5\\%", "5 \\%", "5°", "5^\\circ",
        "5^{\\circ}", "5°C", "5^\\circ C", "5 degrees", "5 pairs of shoes", "5 dogs' bowls", "5 of the apples",
        "5 slices of pizza", "5 dollars each", "5 man-hours", "5 people", "5 students in the class", "5 eggs (a day)",
        "5 eggs!", "5 cents", "5€", "€5", "£5", "$5", "\\$5", "$5$", "$\\$5$", "\\(5\\)", "\\$5.00", "**5**",
        "**5** apples", "**\\$5**", "\\textbf{5}", "\\mathbf{5}", "\\text{5}", "\\text{5 apples}", "\\text{\\$5}",
        "x = 5", "x=5", "x_1 = 5", "x_{12} = 5", "x₁ = 5", "\\text{Total} = 5", "Total cost = \\$5",
        "n = 5 \\text{ eggs}", "AB = 5 cm", "\uff15", "\U0001d7d3", "+5", "05", "\\frac{10}{2}", "\\dfrac{10}{2}",
        "10/2", " 5 ", "~5", "5\\!", "\\!5", "\\left 5 \\right",
    ],
    "18": [
        "18 dollars", "18\\text{ dollars}", "\\text{18 dollars}", "x = 18", "x=18.", "18.", "\\$18", "1\\!8",
        "18 eggs.",
    ],
    "1200": [
        "1,200", "\\$1,200", "\\$1{,}200", "\\$1,200.00", "1200", "1\\,200", "1\u2009200", "1\u202f200", "1,\\!200",
        "1{,}200\\text{ miles}",
    ],
    "72": ["72\\%", "72 \\%", "72%", "72 percent"],
    "540": ["540 meters", "540\\text{ meters}", "540 \\mathrm{~m}", "540\\,\\mathrm{m}"],
    "1/2": ["\\frac{1}{2}", "0.5", ".5", "1/2", "\xbd", "\\frac{1}{2} \\text{ cup}", "1/2 cup", "\xbd cup"],
    "3/2": [
        "1 1/2", "1\xbd", "1 \xbd", "1\\frac{1}{2}", "1 \\frac{1}{2}", "3/2", "1.5", "1 1/2 hours", "1\xbd hours",
        "3⁄2",
    ],
    "4/3": ["1⅓", "\\frac{4}{3}"],
    "2/3": ["⅔"],
    "-3": ["-3", "\u22123", "- 3", "-\\$3", "\\$-3", "-3 degrees", "\uff0d3"],
    "12": ["12 \\text{ in.}", "12 inches"],
}  # fmt: skip
"""Gold, contents that are."""

SAID_RIGHT = {
    "5": [
        "The answer is 5", "The answer is 5.", "the answer is 5!", "The answer is 5! Great.",
        "The final answer is: **5**", "**Answer: 5**", "Answer: **5** apples.", "The answer is $5$.",
        "The answer is 5 apples.", "The answer is 5 apples per day.", "The answer is 5 because 2+3=5.",
        "The answer is 5, since 2 + 3 = 5.", "The answer is 5 dollars, so she is glad.", "answer: 5\n",
        "The answer is 5.\n\nLet me know.", "The answer is 5\nDone.", "The answer is $5.00.", "The answer is 5%.",
        'The answer is 5".', "(the answer is 5)", "The answer is 5 km/h.", "The answer is 5.0.",
        "$\\boxed{5}\\%$ or 6",
    ],
    "1200": ["The answer is $1,200."],
    "-5": ["The answer is -5."],
    "1/2": ["The answer is 1/2 cup."],
    "7": ["Answer: 7 a day."],
    "6": [
        r"- \boxed{6}", r"> \boxed{6}", r"**Answer:** \boxed{6}", r"2 + 4 = \boxed{6}", r"\approx \boxed{6}",
        r"\boxed{6}, 7 of",
        "\\boxed{6}, that is \\boxed{6}", "\\boxed{5} no, \\boxed{6}", "$$\\boxed{6}$$",
        "**\\boxed{6}**", "\\boxed{6}.", "\\boxed{6} and that is all", "\\boxed{\\boxed{6}}", "\\boxed{6}!",
        "\\(\\boxed{6}\\)", "\\[ \\boxed{6} \\]", "\\\\boxed{6}", "\\boxed{6} dollars", "\\boxed{5}\n\\boxed{6}",
    ],
}  # fmt: skip
"""Gold, responses that say it."""

SAID_WRONG = {
    "5": [
        "The answer is **5** million", "The answer is 5\nor 6", "The answer is 5\n  million", "The answer is 5...",
        "The answer is 5 million", "The answer is 5-6", "The answer is 5 - 6", "The answer is 5\u20136",
        "The answer is 5 to 6", "The answer is 5 or 6", "The answer is 5, 6", "The answer is 5, or 6",
        "The answer is 5; 6", "The answer is 5k", "The answer is 5 k", "The answer is 5x", "The answer is 5M",
        "The answer is 5 m", "The answer is 5 bn.", "The answer is 5 hundred", "The answer is 5 dozen.",
        "The answer is 5 and a half.", "The answer is 5 1/2", "The answer is 5\xbd", "The answer is 5²",
        "The answer is 5^2", "The answer is 5 squared", "The answer is 5! = 120", "The answer is 5!/3",
        "The answer is 5! ways", "The answer is 5 * 6", "The answer is 5*6", "The answer is 5**2",
        "The answer is 5 \xd7 10", "The answer is 5 x 6", "The answer is 5e3", "The answer is 5:30",
        "The answer is 5 hours and 20 minutes", "The answer is 5 hours 20 minutes.",
        "The answer is 5 hours, 20 minutes", "The answer is 5 not 6", "The answer is 5 maybe",
        "The answer is 5, maybe", "The answer is 5?", "The answer is 5 (or 6)", "The answer is 5 = 6",
        "The answer is 5 < x", "The answer is 5th", "The answer is 5+", "The answer is 5 + 6",
        "The answer is 5\\cdot 2", "The answer is 5\\,or\\,6", "The answer is 5 percent of 80",
        "The answer is 5 times 6.", "The answer is 5/six", "The answer is 5 of 6",
        "The answer is 5 apples and oranges", "The answer is 5 is wrong", "The answer is 5, no, 6",
        "The answer is 5.5.5", "The answer is 5,5", "The answer is 5 negative", "The answer is 5_2",
        "The answer is 5 | 6", "The answer is 5**6", "The answer is 5 vs. 6",
        "The answer is 5 mil. dollars", "The answer is 5\xa0million", "The answer is 5…", "The answer is 5\t6",
        "The answer is 5\u2009000", "The answer is 5's", "\\boxed{5} or 6", "\\boxed{5} million", "\\boxed{5}k",
        "$\\boxed{5}$ thousand", "\\boxed{5}^2", "\\boxed{5} \\times 10^3", "\\boxed{5} dozen",
        "\\boxed{5} \\text{ million}",
    ],
    "120": ["The answer is 5!"],
    "6": [
        r"2 + 4 or \boxed{6}", r"x \geq \boxed{6}", r"x \neq $\boxed{6}$", r"not \boxed{6}", r"-\boxed{6}",
        r"1\boxed{6}",
        r"\sqrt{\boxed{6}}", r"\frac{\boxed{6}}{2}", r"2 \times \boxed{6}", r"\boxed{6}0", r"\boxed{6}.5",
        r"\boxed{6}-7",
        r"\boxed{6}:30", r"\boxed{6}/7", r"x <= \boxed{5} or \boxed{6}", "The answer is 6" + " " * 150 + "million",
        "The answer is 5 or 6", "\\boxed{5} or \\boxed{6}", "\\boxed{5}, \\boxed{6}", "$\\boxed{5}$ and $\\boxed{6}$",
        "\\boxed{5 or \\boxed{6}}", "\\boxed{5}\\text{ or }\\boxed{6}", "\\boxed{x=5}, or \\boxed{6}",
        "<answer>5</answer> or <answer>6</answer>", "#### 5 or #### 6",
    ],
}  # fmt: skip
"""Gold, responses that say more, or another thing."""
